package org.evenkeel.corba;

import java.util.LinkedList;
import org.omg.CORBA.ORB;
import org.omg.CORBA.ORBPackage.InvalidName;
import org.omg.CORBA.UserException;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;
import org.omg.PortableServer.POAPackage.AdapterAlreadyExists;
import org.omg.PortableServer.POAPackage.AdapterNonExistent;
import org.omg.PortableServer.POAPackage.WrongAdapter;
import org.omg.PortableServer.POAPackage.WrongPolicy;

/** Object adapters: ours, and those of the application's objects. */
final class Adapters {
    private static final String OWN = "org.evenkeel.corba";

    private Adapters() {}

    /**
     * The adapter of our objects. It has a manager of its own, so that they answer whatever state the
     * application's adapters are in.
     */
    static POA own(ORB orb) {
        try {
            POA root = root(orb);
            try {
                return root.find_POA(OWN, false);
            } catch (AdapterNonExistent e) {
                try {
                    POA own = root.create_POA(OWN, null, new org.omg.CORBA.Policy[0]);
                    own.the_POAManager().activate();
                    return own;
                } catch (AdapterAlreadyExists another) {
                    return root.find_POA(OWN, false); // of another thread
                }
            }
        } catch (UserException e) {
            throw new IllegalStateException("the ORB makes no object adapter", e);
        }
    }

    /** The names of an adapter and of those above it, as an interceptor sees them. */
    static String[] names(POA adapter) {
        LinkedList<String> names = new LinkedList<>();
        for (POA at = adapter; at != null; at = at.the_parent()) {
            names.addFirst(at.the_name());
        }
        return names.toArray(new String[0]);
    }

    /** Where an object is in its ORB. */
    static final class Place {
        final POA adapter;
        final byte[] id;

        private Place(POA adapter, byte[] id) {
            this.adapter = adapter;
            this.id = id;
        }
    }

    /**
     * Where an object is.
     *
     * @throws IllegalArgumentException if it is not an object of this ORB
     */
    static Place find(ORB orb, org.omg.CORBA.Object reference) {
        Place place;
        try {
            place = find(root(orb), reference);
        } catch (InvalidName e) {
            throw new IllegalStateException("the ORB has no root adapter", e);
        }
        if (place == null) {
            throw new IllegalArgumentException("a member must be an object of this ORB: " + reference);
        }
        return place;
    }

    private static Place find(POA adapter, org.omg.CORBA.Object reference) {
        try {
            return new Place(adapter, adapter.reference_to_id(reference));
        } catch (WrongAdapter | WrongPolicy e) {
            for (POA child : adapter.the_children()) {
                Place place = find(child, reference);
                if (place != null) {
                    return place;
                }
            }
            return null;
        }
    }

    private static POA root(ORB orb) throws InvalidName {
        return POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
    }
}
