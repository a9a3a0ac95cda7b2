package org.evenkeel.corba;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import org.omg.CORBA.Any;
import org.omg.CORBA.AnyHolder;
import org.omg.CORBA.BAD_PARAM;
import org.omg.CORBA.ORB;
import org.omg.CORBA.ORBPackage.InvalidName;
import org.omg.CORBA.Policy;
import org.omg.CORBA.PolicyError;
import org.omg.CORBA.SetOverrideType;
import org.omg.CORBA.TRANSIENT;
import org.omg.CORBA.portable.OutputStream;
import org.omg.CosLoadBalancing.LoadManager;
import org.omg.CosLoadBalancing.LoadManagerHelper;
import org.omg.CosLoadBalancing.PortableGroup.MEMB_APP_CTRL;
import org.omg.CosLoadBalancing.PortableGroup.MembershipStyleValueHelper;
import org.omg.CosLoadBalancing.PortableGroup.ObjectGroupNotFound;
import org.omg.CosLoadBalancing.PortableGroup.Property;
import org.omg.CosNaming.NameComponent;
import org.omg.IOP.IOR;
import org.omg.IOP.IORHelper;
import org.omg.IOP.TAG_INTERNET_IOP;
import org.omg.IOP.TaggedProfile;
import org.omg.Messaging.RELATIVE_RT_TIMEOUT_POLICY_TYPE;
import org.omg.PortableServer.POA;

/**
 * A server's way to the load manager.
 *
 * <pre>{@code
 * ORB orb = ORB.init(args, LoadBalancing.properties());
 * LoadBalancing balancing = LoadBalancing.with(orb);
 * org.omg.CORBA.Object group = balancing.group("trading", SessionFactoryHelper.id());
 * try (Location here = balancing.at("host1").cpu().requestsPerSecond().push(Duration.ofMillis(500)).open()) {
 *     here.join(group, factory);
 *     orb.run();
 * }
 * }</pre>
 *
 * <p>The manager is the initial reference {@code LoadManager}, given to the ORB by its own option
 * ({@code -ORBInitRef LoadManager=corbaloc:iiop:balancer:2809/LoadManager}), or what
 * {@link #manager(String)} says. Safe for use by several threads.
 */
public final class LoadBalancing {
    /** How long the manager may take to answer: it may ask the member itself before it does. */
    private static final Duration MANAGER_ANSWERS = Duration.ofSeconds(10);

    private final ORB orb;
    private final Interceptor interceptor;
    private volatile String managerUrl;
    private volatile LoadManager manager; // null until it is found, and after it failed

    private final POA adapter;

    private LoadBalancing(ORB orb, Interceptor interceptor) {
        this.orb = orb;
        this.interceptor = interceptor;
        this.adapter = Adapters.own(orb);
        interceptor.setOwnAdapter(Adapters.names(adapter));
    }

    /** Properties for {@code ORB.init}: those of the system, and our interceptor. */
    public static Properties properties() {
        Properties properties = new Properties();
        properties.putAll(System.getProperties());
        properties.setProperty(
                "org.omg.PortableInterceptor.ORBInitializerClass." + Initializer.class.getName(), "");
        return properties;
    }

    /**
     * Load balancing for the servers of an ORB.
     *
     * @throws IllegalArgumentException if the ORB was started without {@link #properties}
     */
    public static LoadBalancing with(ORB orb) {
        try {
            return new LoadBalancing(orb, (Interceptor) orb.resolve_initial_references(Interceptor.NAME));
        } catch (InvalidName | ClassCastException e) {
            throw new IllegalArgumentException(
                    "the ORB has no interceptor for load alerts; start it with"
                            + " ORB.init(args, LoadBalancing.properties())",
                    e);
        }
    }

    /**
     * Says where the manager is, instead of the initial reference {@code LoadManager}.
     *
     * <p>The text is resolved anew whenever the manager does not answer any more, so the file of a
     * {@code file:} URL may change.
     *
     * @param url {@code corbaloc:iiop:HOST:PORT/LoadManager}, {@code IOR:…}, or {@code file://…}, which
     *     holds one of these
     */
    public LoadBalancing manager(String url) {
        managerUrl = url;
        manager = null;
        return this;
    }

    /**
     * The manager's object, for all that this class has no method for. Calls of it take 10 seconds
     * at most.
     *
     * @throws org.omg.CORBA.SystemException if there is no reference to it; whether it answers is
     *     seen by the first call
     */
    public LoadManager manager() {
        LoadManager known = manager;
        if (known == null) {
            // No `narrow`, which would ask it.
            known = LoadManagerHelper.unchecked_narrow(within(MANAGER_ANSWERS, resolveManager()));
            manager = known;
        }
        return known;
    }

    private org.omg.CORBA.Object resolveManager() {
        String url = managerUrl;
        try {
            return url != null ? orb.string_to_object(url) : orb.resolve_initial_references("LoadManager");
        } catch (InvalidName | BAD_PARAM e) {
            // It may be a file that the manager has not written yet, so it is worth another try.
            String what = url != null ? url : "the initial reference LoadManager (-ORBInitRef LoadManager=…)";
            TRANSIENT complaint = new TRANSIENT("no reference to the manager: " + what);
            complaint.initCause(e);
            throw complaint;
        }
    }

    /** Says that the manager did not answer: its reference is looked up again. */
    void managerFailed() {
        manager = null;
    }

    /**
     * The object group of that name; it is created if there is none.
     *
     * <p>Waits for the manager as {@link LocationBuilder#open} does.
     *
     * @param name its name, which is its group's name everywhere in Evenkeel
     * @param typeId the repository id of its members' interface: {@code FooHelper.id()}
     * @param more its further properties if it is created
     * @throws org.omg.CORBA.UserException if the manager refuses the properties
     */
    public org.omg.CORBA.Object group(String name, String typeId, Property... more)
            throws org.omg.CORBA.UserException, InterruptedException {
        return Patience.FOREVER.with("find the group " + name, this, () -> {
            try {
                return find(name);
            } catch (ObjectGroupNotFound e) {
                return create(name, typeId, more);
            }
        });
    }

    private org.omg.CORBA.Object find(String name) throws ObjectGroupNotFound {
        String url = "corbaloc:iiop:1.2@" + address(manager()) + "/group/" + escape(name);
        return manager().get_object_group_ref(orb.string_to_object(url));
    }

    private org.omg.CORBA.Object create(String name, String typeId, Property[] more)
            throws org.omg.CORBA.UserException {
        Property[] all = Arrays.copyOf(more, more.length + 2);
        Any style = orb.create_any();
        MembershipStyleValueHelper.insert(style, MEMB_APP_CTRL.value);
        all[more.length] = property("org.omg.PortableGroup.MembershipStyle", style);
        Any text = orb.create_any();
        text.insert_string(name);
        all[more.length + 1] = property("org.evenkeel.GroupName", text);
        try {
            return manager().create_object(typeId, all, new AnyHolder());
        } catch (org.omg.CORBA.UserException e) {
            // Another server may have created it in this moment.
            try {
                return find(name);
            } catch (ObjectGroupNotFound still) {
                throw e;
            }
        }
    }

    /** A property of that name, as the manager's operations take it. */
    public static Property property(String name, Any value) {
        return new Property(new NameComponent[] {new NameComponent(name, "")}, value);
    }

    /**
     * A location of this process: what its load and its alerts are about.
     *
     * <p>Each process must have locations of its own, as each has one alert. The name of a location is
     * the same everywhere in Evenkeel, so another source of load may speak of it, too.
     *
     * @param location its name; components are separated by {@code /}, id and kind by {@code .}, as in
     *     the string form of names of the CORBA naming service
     */
    public LocationBuilder at(String location) {
        return new LocationBuilder(this, location, Names.parse(location));
    }

    ORB orb() {
        return orb;
    }

    /** Where alerts and monitors are. */
    POA adapter() {
        return adapter;
    }

    Interceptor interceptor() {
        return interceptor;
    }

    /** The same reference with a limit for each call. */
    org.omg.CORBA.Object within(Duration limit, org.omg.CORBA.Object reference) {
        Any ticks = orb.create_any();
        ticks.insert_ulonglong(limit.toNanos() / 100); // TimeBase::TimeT
        try {
            Policy[] policies = {orb.create_policy(RELATIVE_RT_TIMEOUT_POLICY_TYPE.value, ticks)};
            return reference._set_policy_override(policies, SetOverrideType.ADD_OVERRIDE);
        } catch (PolicyError e) {
            throw new IllegalStateException("the ORB knows no limit for a request's time", e);
        }
    }

    /** {@code HOST:PORT} of the first IIOP profile of a reference. */
    String address(org.omg.CORBA.Object reference) {
        OutputStream out = (OutputStream) orb.create_output_stream();
        out.write_Object(reference);
        IOR ior = IORHelper.read(out.create_input_stream());
        for (TaggedProfile profile : ior.profiles) {
            if (profile.tag == TAG_INTERNET_IOP.value) {
                // An encapsulation: byte order, version, host, port, and what is of no interest here.
                ByteBuffer body = ByteBuffer.wrap(profile.profile_data);
                body.order(body.get(0) == 0 ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN);
                int length = body.getInt(4); // with the final zero
                String host = new String(profile.profile_data, 8, length - 1, StandardCharsets.ISO_8859_1);
                int port = body.getShort((8 + length + 1) & ~1) & 0xffff;
                return (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + port;
            }
        }
        throw new BAD_PARAM("the reference has no IIOP profile");
    }

    /** Escapes what may not stand in a corbaloc's key. */
    private static String escape(String key) {
        StringBuilder escaped = new StringBuilder();
        for (byte b : key.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (b & 0xff);
            boolean plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9';
            if (plain || "-_.!~*'()".indexOf(c) >= 0) {
                escaped.append(c);
            } else {
                escaped.append(String.format("%%%02x", (int) c));
            }
        }
        return escaped.toString();
    }
}
