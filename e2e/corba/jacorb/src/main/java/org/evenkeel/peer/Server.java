package org.evenkeel.peer;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.evenkeel.corba.LoadBalancing;
import org.evenkeel.corba.Location;
import org.evenkeel.corba.LocationBuilder;
import org.evenkeel.corba.Member;
import org.evenkeel.peer.idl.PeerPOA;
import org.evenkeel.peer.idl.Refused;
import org.evenkeel.peer.idl.Session;
import org.evenkeel.peer.idl.SessionFactoryPOA;
import org.evenkeel.peer.idl.SessionHelper;
import org.evenkeel.peer.idl.SessionPOA;
import org.omg.CORBA.Any;
import org.omg.CORBA.COMM_FAILURE;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.NO_IMPLEMENT;
import org.omg.CORBA.NO_RESPONSE;
import org.omg.CORBA.OBJECT_NOT_EXIST;
import org.omg.CORBA.OBJ_ADAPTER;
import org.omg.CORBA.ORB;
import org.omg.CORBA.TRANSIENT;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;
import org.omg.PortableServer.Servant;

/**
 * A server. Prints {@code IOR:…} of a Peer of its name, {@code IOR:…} of a SessionFactory, and
 * {@code ready}. Then it does what the lines on standard input say, and ends with them.
 *
 * <p>Commands: {@code served} (how many requests its objects have answered), {@code peer NAME} (one
 * more; its reference), {@code call REFERENCE} ({@code who} from within this process); and for load
 * balancing, with the library: {@code location NAME [cpu] [host_cpu] [memory] [disk] [network[=CAPACITY]] [requests] [in_flight] [custom=ID]
 * [others] [push MS] [rejoin MS]}, {@code load ID VALUE}, {@code at NAME member GROUP [REFERENCE]} (a
 * reference or a name), {@code at NAME group} (as the manager has it), {@code at NAME alerted}, {@code at
 * NAME loads}, {@code at NAME leave}.
 */
final class Server {
    private final ORB orb;
    private final String name;
    private final POA root;
    private static final AtomicLong SERVED = new AtomicLong();
    private static final AtomicInteger POSTED = new AtomicInteger();
    private final Map<String, Location> locations = new ConcurrentHashMap<>();
    private final Map<String, Member> members = new ConcurrentHashMap<>();
    private final Map<Integer, Double> loads = new ConcurrentHashMap<>();
    private String peer;

    Server(ORB orb, String name) throws Exception {
        this.orb = orb;
        this.name = name;
        root = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
        root.the_POAManager().activate();
    }

    void run() throws Exception {
        peer = activate(new PeerServant(name));
        Peer.say(peer);
        Peer.say(activate(new Factory()));
        Peer.say("ready");
        Peer.follow(this::command);
    }

    private String command(String[] words) throws Exception {
        switch (words[0]) {
            case "served":
                return "" + SERVED;
            case "peer":
                return activate(new PeerServant(words[1]));
            case "call":
                return org.evenkeel.peer.idl.PeerHelper.unchecked_narrow(orb.string_to_object(words[1])).who();
            case "location":
                locations.put(words[1], open(words));
                return "location";
            case "load":
                loads.put(Integer.valueOf(words[1]), Double.valueOf(words[2]));
                return "load";
            case "at":
                return at(words[1], locations.get(words[1]), words);
            default:
                return "unknown command " + words[0];
        }
    }

    private String at(String name, Location location, String[] words) throws Exception {
        switch (words[2]) {
            case "member":
                members.put(name, join(location, words[3], words.length > 4 ? words[4] : peer));
                return "member";
            case "group":
                return orb.object_to_string(members.get(name).group());
            case "alerted":
                return location.isAlerted() ? "yes" : "no";
            case "loads":
                return Manager.text(location.loads());
            case "leave":
                location.close();
                return "leave";
            default:
                return "unknown command at a location: " + words[2];
        }
    }

    private Location open(String[] words) throws InterruptedException {
        LocationBuilder location = LoadBalancing.with(orb).at(words[1]);
        for (int i = 2; i < words.length; i++) {
            switch (words[i]) {
                case "cpu":
                    location.cpu();
                    break;
                case "host_cpu":
                    location.hostCpu();
                    break;
                case "memory":
                    location.hostMemory();
                    break;
                case "disk":
                    location.hostDisk();
                    break;
                case "network":
                    location.hostNetwork();
                    break;
                case "requests":
                    location.requestsPerSecond();
                    break;
                case "in_flight":
                    location.inFlight();
                    break;
                case "others":
                    location.shedOthers();
                    break;
                case "push":
                    location.push(Duration.ofMillis(Integer.parseInt(words[++i])));
                    break;
                case "rejoin":
                    location.rejoin(Duration.ofMillis(Integer.parseInt(words[++i])));
                    break;
                default:
                    if (words[i].startsWith("network=")) {
                        location.hostNetwork(Double.parseDouble(words[i].substring(8)));
                        break;
                    }
                    if (!words[i].startsWith("custom=")) {
                        throw new IllegalArgumentException(words[i]);
                    }
                    int id = Integer.parseInt(words[i].substring("custom=".length()));
                    location.load(id, () -> loads.getOrDefault(id, -1.0));
            }
        }
        return location.open();
    }

    private Member join(Location location, String group, String reference) throws Exception {
        org.omg.CORBA.Object object = orb.string_to_object(reference);
        boolean named = group.indexOf(':') < 0;
        org.omg.CORBA.Object to = named
                ? LoadBalancing.with(orb).group(group, typeOf(object))
                : orb.string_to_object(group);
        return location.join(to, object);
    }

    private static String typeOf(org.omg.CORBA.Object object) {
        return object._is_a(org.evenkeel.peer.idl.PeerHelper.id())
                ? org.evenkeel.peer.idl.PeerHelper.id()
                : org.evenkeel.peer.idl.SessionFactoryHelper.id();
    }

    private String activate(Servant servant) throws Exception {
        return orb.object_to_string(root.servant_to_reference(servant));
    }

    /** One Peer, with the counters of the process. */
    static final class PeerServant extends PeerPOA {
        private final String name;
        private volatile int setting;

        PeerServant(String name) {
            this.name = name;
        }

        @Override
        public String who() {
            SERVED.incrementAndGet();
            return name;
        }

        @Override
        public int add(int a, int b) {
            SERVED.incrementAndGet();
            return a + b;
        }

        @Override
        public byte[] blob(byte[] data) {
            SERVED.incrementAndGet();
            return data;
        }

        @Override
        public String wide(String text) {
            SERVED.incrementAndGet();
            return text;
        }

        @Override
        public Any reflect(Any value) {
            SERVED.incrementAndGet();
            return value;
        }

        @Override
        public void post(int value) {
            SERVED.incrementAndGet();
            POSTED.addAndGet(value);
        }

        @Override
        public int posted() {
            SERVED.incrementAndGet();
            return POSTED.get();
        }

        @Override
        public void fail(int kind) throws Refused {
            SERVED.incrementAndGet();
            switch (kind) {
                case 0:
                    throw new Refused("as asked", 42);
                case 1:
                    throw new TRANSIENT(7, CompletionStatus.COMPLETED_NO);
                case 2:
                    throw new COMM_FAILURE(0, CompletionStatus.COMPLETED_MAYBE);
                case 3:
                    throw new NO_IMPLEMENT(9, CompletionStatus.COMPLETED_YES);
                case 4:
                    throw new OBJECT_NOT_EXIST(0, CompletionStatus.COMPLETED_NO);
                case 5:
                    throw new OBJ_ADAPTER(0, CompletionStatus.COMPLETED_NO);
                case 6:
                    throw new NO_RESPONSE(0, CompletionStatus.COMPLETED_NO);
                default:
            }
        }

        @Override
        public void sleep(int ms) {
            SERVED.incrementAndGet();
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public boolean is_prime(int number) {
            SERVED.incrementAndGet();
            long n = Integer.toUnsignedLong(number);
            for (long i = 2; i * i <= n; i++) {
                if (n % i == 0) {
                    return false;
                }
            }
            return n >= 2;
        }

        @Override
        public int setting() {
            SERVED.incrementAndGet();
            return setting;
        }

        @Override
        public void setting(int value) {
            SERVED.incrementAndGet();
            setting = value;
        }
    }

    private final class Factory extends SessionFactoryPOA {
        @Override
        public Session open(String client) {
            SERVED.incrementAndGet();
            try {
                return SessionHelper.narrow(root.servant_to_reference(new SessionServant(name + "/" + client)));
            } catch (org.omg.CORBA.UserException e) {
                throw new OBJ_ADAPTER(e.toString());
            }
        }
    }

    private final class SessionServant extends SessionPOA {
        private final String name;
        private final AtomicInteger count = new AtomicInteger();

        SessionServant(String name) {
            this.name = name;
        }

        @Override
        public String who() {
            SERVED.incrementAndGet();
            count.incrementAndGet();
            return name;
        }

        @Override
        public int count() {
            SERVED.incrementAndGet();
            return count.incrementAndGet();
        }

        @Override
        public void close() {
            SERVED.incrementAndGet();
            try {
                root.deactivate_object(root.servant_to_id(this));
            } catch (org.omg.CORBA.UserException e) {
                throw new OBJ_ADAPTER(e.toString());
            }
        }
    }
}
