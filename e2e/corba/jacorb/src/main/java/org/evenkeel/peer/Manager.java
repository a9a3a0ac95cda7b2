package org.evenkeel.peer;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.omg.CORBA.Any;
import org.omg.CORBA.AnyHolder;
import org.omg.CORBA.OBJECT_NOT_EXIST;
import org.omg.CORBA.ORB;
import org.omg.CORBA.TCKind;
import org.omg.CORBA.TypeCode;
import org.omg.CORBA.TypeCodePackage.BadKind;
import org.omg.CORBA.UserException;
import org.omg.CosLoadBalancing.Load;
import org.omg.CosLoadBalancing.LoadAlertHelper;
import org.omg.CosLoadBalancing.LoadAlertPOA;
import org.omg.CosLoadBalancing.LoadManager;
import org.omg.CosLoadBalancing.LoadManagerHelper;
import org.omg.CosLoadBalancing.LoadMonitorHelper;
import org.omg.CosLoadBalancing.LoadMonitorPOA;
import org.omg.CosLoadBalancing.LocationNotFound;
import org.omg.CosLoadBalancing.PortableGroup.FactoriesValueHelper;
import org.omg.CosLoadBalancing.PortableGroup.FactoryInfo;
import org.omg.CosLoadBalancing.PortableGroup.GenericFactoryHelper;
import org.omg.CosLoadBalancing.PortableGroup.GenericFactoryPOA;
import org.omg.CosLoadBalancing.PortableGroup.InitialNumberMembersValueHelper;
import org.omg.CosLoadBalancing.PortableGroup.MemberNotFound;
import org.omg.CosLoadBalancing.PortableGroup.MembershipStyleValueHelper;
import org.omg.CosLoadBalancing.PortableGroup.MinimumNumberMembersValueHelper;
import org.omg.CosLoadBalancing.PortableGroup.NoFactory;
import org.omg.CosLoadBalancing.PortableGroup.ObjectGroupNotFound;
import org.omg.CosLoadBalancing.PortableGroup.Property;
import org.omg.CosLoadBalancing.Strategy;
import org.omg.CosLoadBalancing.StrategyHelper;
import org.omg.CosLoadBalancing.StrategyInfo;
import org.omg.CosLoadBalancing.StrategyInfoHelper;
import org.omg.CosLoadBalancing.StrategyPOA;
import org.omg.CosNaming.NameComponent;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;
import org.omg.PortableServer.Servant;

/**
 * Calls the load manager, the initial reference {@code LoadManager}, through the stubs that JacORB
 * generates: an application or an administrator.
 *
 * <p>A command is an operation of the manager, and its arguments in the order of the IDL: references as
 * text, locations as {@link #location} reads them, loads as {@code ID=VALUE}, properties as {@code
 * KEY=VALUE} (see {@link #property}). What it answers is the result, lists in one line, or the name of the
 * operation. {@code manager REFERENCE} is another one from now on. Objects of this process for it: {@code
 * alert}, {@code monitor LOCATION ID=VALUE…}, {@code factory NAME}, {@code strategy LOCATION}, each answered
 * by its reference; {@code alerted} (of the last alert), {@code made}, {@code deleted} and {@code criteria}
 * (of the factories), {@code analyzed} (of the strategies). The strategy of a group is called with {@code
 * strategy_name GROUP}, {@code strategy_properties GROUP}, {@code strategy_push_loads GROUP LOCATION
 * ID=VALUE…}, {@code strategy_get_loads GROUP LOCATION}, {@code strategy_next_member GROUP} and {@code
 * strategy_analyze_loads GROUP}; a monitor with {@code monitor_loads REFERENCE}.
 */
final class Manager {
    private static final String LOAD_BALANCING = "org.omg.CosLoadBalancing.";
    private static final String STRATEGY = LOAD_BALANCING + "Strategy";
    private static final String PORTABLE_GROUP = "org.omg.PortableGroup.";

    private final ORB orb;
    private final POA root;
    private LoadManager manager;
    /** What create_object gave for a group, by the group's reference. */
    private final Map<String, Any> creations = new ConcurrentHashMap<>();

    private volatile boolean alerted;
    private final List<String> made = new ArrayList<>();
    private final List<String> deleted = new ArrayList<>();
    private volatile String criteria = "";
    private volatile int analyzed;

    Manager(ORB orb) throws Exception {
        this.orb = orb;
        root = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
        root.the_POAManager().activate();
        manager = LoadManagerHelper.narrow(orb.resolve_initial_references("LoadManager"));
    }

    void run() throws Exception {
        Peer.say("ready");
        Peer.follow(this::command);
    }

    private String command(String[] words) throws Exception {
        String first = words.length > 1 ? words[1] : "";
        String second = words.length > 2 ? words[2] : "";
        switch (words[0]) {
            case "set_default_properties":
                manager.set_default_properties(properties(words, 1));
                return words[0];
            case "get_default_properties":
                return text(manager.get_default_properties());
            case "remove_default_properties":
                manager.remove_default_properties(properties(words, 1));
                return words[0];
            case "set_type_properties":
                manager.set_type_properties(first, properties(words, 2));
                return words[0];
            case "get_type_properties":
                return text(manager.get_type_properties(first));
            case "remove_type_properties":
                manager.remove_type_properties(first, properties(words, 2));
                return words[0];
            case "set_properties_dynamically":
                manager.set_properties_dynamically(object(first), properties(words, 2));
                return words[0];
            case "get_properties":
                return text(manager.get_properties(object(first)));
            case "create_object":
                AnyHolder creation = new AnyHolder();
                String group = text(manager.create_object(first, properties(words, 2), creation));
                creations.put(group, creation.value);
                return group;
            case "delete_object":
                manager.delete_object(creations.get(first));
                return words[0];
            case "create_member":
                return text(manager.create_member(object(first), location(second), words[3], properties(words, 4)));
            case "add_member":
                return text(manager.add_member(object(first), location(second), object(words[3])));
            case "remove_member":
                return text(manager.remove_member(object(first), location(second)));
            case "locations_of_members":
                List<String> locations = new ArrayList<>();
                for (NameComponent[] location : manager.locations_of_members(object(first))) {
                    locations.add(text(location));
                }
                return String.join(" ", locations);
            case "groups_at_location":
                List<String> groups = new ArrayList<>();
                for (org.omg.CORBA.Object at : manager.groups_at_location(location(first))) {
                    groups.add(text(at));
                }
                return String.join(" ", groups);
            case "get_object_group_id":
                return Long.toUnsignedString(manager.get_object_group_id(object(first)));
            case "get_object_group_ref":
                return text(manager.get_object_group_ref(object(first)));
            case "get_object_group_ref_from_id":
                return text(manager.get_object_group_ref_from_id(Long.parseUnsignedLong(first)));
            case "get_member_ref":
                return text(manager.get_member_ref(object(first), location(second)));
            case "push_loads":
                manager.push_loads(location(first), loads(words, 2));
                return words[0];
            case "get_loads":
                return text(manager.get_loads(location(first)));
            case "enable_alert":
                manager.enable_alert(location(first));
                return words[0];
            case "disable_alert":
                manager.disable_alert(location(first));
                return words[0];
            case "register_load_alert":
                manager.register_load_alert(location(first), LoadAlertHelper.unchecked_narrow(object(second)));
                return words[0];
            case "get_load_alert":
                return text(manager.get_load_alert(location(first)));
            case "remove_load_alert":
                manager.remove_load_alert(location(first));
                return words[0];
            case "register_load_monitor":
                manager.register_load_monitor(location(first), LoadMonitorHelper.unchecked_narrow(object(second)));
                return words[0];
            case "get_load_monitor":
                return text(manager.get_load_monitor(location(first)));
            case "remove_load_monitor":
                manager.remove_load_monitor(location(first));
                return words[0];
            case "manager":
                manager = LoadManagerHelper.narrow(orb.string_to_object(first));
                return words[0];
            default:
                return object(words, first, second);
        }
    }

    /** Objects of this process, and calls of others than the manager. */
    private String object(String[] words, String first, String second) throws Exception {
        switch (words[0]) {
            case "alert":
                return activate(new Alert());
            case "alerted":
                return alerted ? "yes" : "no";
            case "monitor":
                return activate(new Monitor(location(first), loads(words, 2)));
            case "monitor_loads":
                return text(LoadMonitorHelper.unchecked_narrow(object(first)).loads());
            case "factory":
                return activate(new Factory(first));
            case "made":
                return String.join(" ", made);
            case "deleted":
                return String.join(" ", deleted);
            case "criteria":
                return criteria;
            case "strategy":
                return activate(new Custom(location(first)));
            case "analyzed":
                return "" + analyzed;
            case "strategy_name":
                return strategy(first).name();
            case "strategy_properties":
                return text(strategy(first).get_properties());
            case "strategy_push_loads":
                strategy(first).push_loads(location(second), loads(words, 3));
                return words[0];
            case "strategy_get_loads":
                return text(strategy(first).get_loads(manager, location(second)));
            case "strategy_next_member":
                return text(strategy(first).next_member(object(first), manager));
            case "strategy_analyze_loads":
                strategy(first).analyze_loads(object(first), manager);
                return words[0];
            default:
                return "unknown command " + words[0];
        }
    }

    /** That of a group. */
    private Strategy strategy(String group) throws UserException {
        for (Property property : manager.get_properties(object(group))) {
            if (property.nam[0].id.equals(STRATEGY)) {
                return StrategyHelper.extract(property.val);
            }
        }
        throw new OBJECT_NOT_EXIST();
    }

    private org.omg.CORBA.Object object(String reference) {
        return reference.equals("nil") ? null : orb.string_to_object(reference);
    }

    private String text(org.omg.CORBA.Object object) {
        return object == null ? "nil" : orb.object_to_string(object);
    }

    /** Components joined by {@code /}, each with its kind after {@code .}. */
    private static NameComponent[] location(String text) {
        return Arrays.stream(text.split("/"))
                .map(component -> component.split("\\."))
                .map(parts -> new NameComponent(parts[0], parts.length > 1 ? parts[1] : ""))
                .toArray(NameComponent[]::new);
    }

    private static String text(NameComponent[] name) {
        return Arrays.stream(name)
                .map(component -> component.kind.isEmpty() ? component.id : component.id + "." + component.kind)
                .collect(Collectors.joining("/"));
    }

    private static Load[] loads(String[] words, int from) {
        return Arrays.stream(words, from, words.length)
                .map(word -> word.split("="))
                .map(pair -> new Load(Integer.parseInt(pair[0]), Float.parseFloat(pair[1])))
                .toArray(Load[]::new);
    }

    static String text(Load[] loads) {
        return Arrays.stream(loads).map(load -> load.id + "=" + text(load.value)).collect(Collectors.joining(" "));
    }

    /** Without decimals, if it has none. */
    private static String text(float number) {
        return number == (long) number ? "" + (long) number : "" + number;
    }

    private Property[] properties(String[] words, int from) {
        return Arrays.stream(words, from, words.length).map(this::property).toArray(Property[]::new);
    }

    /**
     * {@code membership=0}, {@code initial=N}, {@code minimum=N}, {@code factories=LOCATION@REFERENCE,…},
     * {@code strategy=NAME[,PROPERTY=FLOAT…]}, {@code custom=REFERENCE}, or {@code ID[:TYPE]=VALUE}, where
     * TYPE is float, boolean, ulong or long.
     */
    private Property property(String word) {
        String key = word.substring(0, word.indexOf('='));
        String value = word.substring(word.indexOf('=') + 1);
        Any any = orb.create_any();
        switch (key) {
            case "membership":
                MembershipStyleValueHelper.insert(any, Integer.parseInt(value));
                return named(PORTABLE_GROUP + "MembershipStyle", any);
            case "initial":
                InitialNumberMembersValueHelper.insert(any, Short.parseShort(value));
                return named(PORTABLE_GROUP + "InitialNumberMembers", any);
            case "minimum":
                MinimumNumberMembersValueHelper.insert(any, Short.parseShort(value));
                return named(PORTABLE_GROUP + "MinimumNumberMembers", any);
            case "factories":
                FactoryInfo[] factories = Arrays.stream(value.split(","))
                        .map(one -> one.split("@"))
                        .map(pair -> new FactoryInfo(
                                GenericFactoryHelper.unchecked_narrow(object(pair[1])),
                                location(pair[0]),
                                new Property[] {property("made-at=" + pair[0])}))
                        .toArray(FactoryInfo[]::new);
                FactoriesValueHelper.insert(any, factories);
                return named(PORTABLE_GROUP + "Factories", any);
            case "strategy":
                String[] parts = value.split(",");
                Property[] inner = Arrays.stream(parts, 1, parts.length)
                        .map(one -> {
                            Any number = orb.create_any();
                            number.insert_float(Float.parseFloat(one.substring(one.indexOf('=') + 1)));
                            return named(
                                    LOAD_BALANCING + "Strategy." + parts[0] + "." + one.substring(0, one.indexOf('=')),
                                    number);
                        })
                        .toArray(Property[]::new);
                StrategyInfoHelper.insert(any, new StrategyInfo(parts[0], inner));
                return named(LOAD_BALANCING + "StrategyInfo", any);
            case "custom":
                StrategyHelper.insert(any, StrategyHelper.unchecked_narrow(object(value)));
                return named(LOAD_BALANCING + "CustomStrategy", any);
            default:
                String[] typed = key.split(":");
                insert(any, typed.length > 1 ? typed[1] : "string", value);
                return named(typed[0], any);
        }
    }

    private static void insert(Any any, String type, String value) {
        switch (type) {
            case "float":
                any.insert_float(Float.parseFloat(value));
                break;
            case "ulong":
                any.insert_ulong(Integer.parseUnsignedInt(value));
                break;
            case "long":
                any.insert_long(Integer.parseInt(value));
                break;
            case "boolean":
                any.insert_boolean(Boolean.parseBoolean(value));
                break;
            default:
                any.insert_string(value);
        }
    }

    private static Property named(String name, Any value) {
        return new Property(new NameComponent[] {new NameComponent(name, "")}, value);
    }

    /** Properties in the order in which they come. */
    private String text(Property[] properties) throws BadKind {
        List<String> all = new ArrayList<>();
        for (Property property : properties) {
            String name = property.nam[0].id;
            if (name.equals(STRATEGY)) {
                // Its own helper refuses a reference to anything else.
                StrategyHelper.extract(property.val);
            }
            all.add(name + "=" + text(property.val));
        }
        return String.join(" ", all);
    }

    private String text(Any any) throws BadKind {
        TypeCode type = any.type();
        while (type.kind() == TCKind.tk_alias) {
            type = type.content_type();
        }
        switch (type.kind().value()) {
            case TCKind._tk_long:
                return "" + any.extract_long();
            case TCKind._tk_ushort:
                return "" + Short.toUnsignedInt(any.extract_ushort());
            case TCKind._tk_ulong:
                return "" + Integer.toUnsignedString(any.extract_ulong());
            case TCKind._tk_float:
                return text(any.extract_float());
            case TCKind._tk_boolean:
                return "" + any.extract_boolean();
            case TCKind._tk_string:
                return any.extract_string();
            case TCKind._tk_objref:
                return "object";
            case TCKind._tk_struct:
                StrategyInfo info = StrategyInfoHelper.extract(any);
                return info.name + "(" + text(info.props) + ")";
            case TCKind._tk_sequence:
                return FactoriesValueHelper.extract(any).length + " factories";
            default:
                return "kind " + type.kind().value();
        }
    }

    private String activate(Servant servant) throws UserException {
        return text(root.servant_to_reference(servant));
    }

    private final class Alert extends LoadAlertPOA {
        @Override
        public void enable_alert() {
            alerted = true;
        }

        @Override
        public void disable_alert() {
            alerted = false;
        }
    }

    private static final class Monitor extends LoadMonitorPOA {
        private final NameComponent[] location;
        private final Load[] loads;

        Monitor(NameComponent[] location, Load[] loads) {
            this.location = location;
            this.loads = loads;
        }

        @Override
        public NameComponent[] the_location() {
            return location;
        }

        @Override
        public Load[] loads() {
            return loads;
        }
    }

    /** Makes Peers that answer {@code who} with the factory's name and a number. */
    private final class Factory extends GenericFactoryPOA {
        private final String name;
        private int number;

        Factory(String name) {
            this.name = name;
        }

        @Override
        public org.omg.CORBA.Object create_object(String type, Property[] given, AnyHolder creation)
                throws NoFactory {
            if (!type.equals(org.evenkeel.peer.idl.PeerHelper.id())) {
                throw new NoFactory(location(name), type);
            }
            try {
                synchronized (made) {
                    criteria = text(given);
                    String made = name + "-" + ++number;
                    creation.value = orb.create_any();
                    creation.value.insert_string(made);
                    Manager.this.made.add(made);
                    return root.servant_to_reference(new Server.PeerServant(made));
                }
            } catch (UserException e) {
                throw new org.omg.CORBA.UNKNOWN(e.toString());
            }
        }

        @Override
        public void delete_object(Any creation) {
            synchronized (made) {
                deleted.add(creation.extract_string());
            }
        }
    }

    /** Always takes the member at one location. */
    private final class Custom extends StrategyPOA {
        private final NameComponent[] location;

        Custom(NameComponent[] location) {
            this.location = location;
        }

        @Override
        public String name() {
            return "always " + location[0].id;
        }

        @Override
        public Property[] get_properties() {
            return new Property[0];
        }

        @Override
        public void push_loads(NameComponent[] location, Load[] loads) {}

        @Override
        public Load[] get_loads(LoadManager manager, NameComponent[] location) throws LocationNotFound {
            return manager.get_loads(location);
        }

        @Override
        public org.omg.CORBA.Object next_member(org.omg.CORBA.Object group, LoadManager manager)
                throws ObjectGroupNotFound, MemberNotFound {
            if (group == null || manager == null) {
                throw new OBJECT_NOT_EXIST();
            }
            return manager.get_member_ref(group, location);
        }

        @Override
        public void analyze_loads(org.omg.CORBA.Object group, LoadManager manager) {
            analyzed++;
        }
    }
}
