package org.evenkeel.corba;

import org.omg.CORBA.LocalObject;
import org.omg.PortableInterceptor.ORBInitInfo;
import org.omg.PortableInterceptor.ORBInitInfoPackage.DuplicateName;
import org.omg.PortableInterceptor.ORBInitInfoPackage.InvalidName;
import org.omg.PortableInterceptor.ORBInitializer;

/** Gives an ORB its interceptor, which is only possible while the ORB starts. */
public final class Initializer extends LocalObject implements ORBInitializer {
    /** For the ORB, which finds the class by its name. */
    public Initializer() {}

    @Override
    public void pre_init(ORBInitInfo info) {
        Interceptor interceptor = new Interceptor(info.allocate_slot_id());
        try {
            info.register_initial_reference(Interceptor.NAME, interceptor);
            info.add_server_request_interceptor(interceptor);
        } catch (InvalidName | DuplicateName e) {
            // The class stands in the properties twice: the first one does the work.
        }
    }

    @Override
    public void post_init(ORBInitInfo info) {}
}
