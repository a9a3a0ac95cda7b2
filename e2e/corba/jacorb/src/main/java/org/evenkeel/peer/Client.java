package org.evenkeel.peer;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.evenkeel.peer.idl.OctetsHelper;
import org.evenkeel.peer.idl.PeerHelper;
import org.evenkeel.peer.idl.Refused;
import org.evenkeel.peer.idl.RefusedHelper;
import org.evenkeel.peer.idl.Session;
import org.evenkeel.peer.idl.SessionFactory;
import org.evenkeel.peer.idl.SessionFactoryHelper;
import org.omg.CORBA.Any;
import org.omg.CORBA.BAD_PARAM;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.DATA_CONVERSION;
import org.omg.CORBA.ORB;
import org.omg.CORBA.StructMember;
import org.omg.CORBA.TCKind;
import org.omg.CORBA.TypeCode;
import org.omg.CosNaming.NameComponent;
import org.omg.CosNaming.NameHelper;
import org.omg.DynamicAny.DynAny;
import org.omg.DynamicAny.DynAnyFactory;
import org.omg.DynamicAny.DynAnyFactoryHelper;
import org.omg.DynamicAny.DynSequence;
import org.omg.DynamicAny.DynSequenceHelper;
import org.omg.DynamicAny.DynStruct;
import org.omg.DynamicAny.DynStructHelper;

/**
 * A client, which knows nothing of load balancing.
 *
 * <p>{@code client REFERENCE} does what the lines on standard input say, one call each, and answers
 * each with a line. {@code client REFERENCE OPERATION… [--count N] [--rate HZ] [--warm N] [--each]
 * [--latencies]} repeats one operation: N times, or until standard input ends. Without a rate, the
 * next call follows the last one's answer. It prints {@code bound ANSWER} whenever the answer is
 * another than before (with --each: every answer), and at the end {@code done CALLS ERRORS SECONDS},
 * with --latencies before it {@code latency NANOSECONDS CALLS} for each step of a histogram (steps of
 * 1 %, the first --warm calls left out).
 *
 * <p>Operations: those of Peer by their names ({@code who}, {@code add 1 2}, {@code blob BYTES},
 * {@code wide TEXT}, {@code reflect KIND}, {@code post 1}, {@code posted}, {@code fail KIND}, {@code
 * sleep MS}, {@code is_prime N}, {@code setting [N]}), {@code is_a ID}, {@code non_existent}, {@code
 * open NAME} for a session factory and then {@code session who}, {@code session count}, {@code session
 * close}, {@code use REFERENCE} and {@code reference}.
 */
final class Client {
    private final ORB orb;
    private org.omg.CORBA.Object object;
    private org.evenkeel.peer.idl.Peer peer;
    private SessionFactory factory;
    private Session session;

    Client(ORB orb, String reference) throws Exception {
        this.orb = orb;
        use(reference);
    }

    void run(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            repeat(arguments);
        } else {
            Peer.say("ready");
            Peer.follow(this::call);
        }
    }

    // References are not asked for their types: the first request is the call itself.
    private void use(String reference) throws Exception {
        object = reference.indexOf(':') < 0
                ? orb.resolve_initial_references(reference)
                : orb.string_to_object(reference);
        peer = PeerHelper.unchecked_narrow(object);
        factory = SessionFactoryHelper.unchecked_narrow(object);
    }

    private String call(String[] words) throws Exception {
        switch (words[0]) {
            case "who":
                return peer.who();
            case "add":
                return "" + peer.add(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            case "blob":
                blob(Integer.parseInt(words[1]));
                return "blob " + words[1];
            case "wide":
                return peer.wide(words[1]);
            case "reflect":
                return "reflect " + words[1] + (reflect(words[1]) ? "" : " differs");
            case "post":
                peer.post(Integer.parseInt(words[1]));
                return "post " + words[1];
            case "posted":
                return "" + peer.posted();
            case "fail":
                peer.fail(Integer.parseInt(words[1]));
                return "fail " + words[1];
            case "sleep":
                peer.sleep(Integer.parseInt(words[1]));
                return "sleep " + words[1];
            case "is_prime":
                return peer.is_prime(Integer.parseUnsignedInt(words[1])) ? "prime" : "composite";
            case "setting":
                if (words.length > 1) {
                    peer.setting(Integer.parseInt(words[1]));
                }
                return "" + peer.setting();
            case "is_a":
                return object._is_a(words[1]) ? "yes" : "no";
            case "non_existent":
                return object._non_existent() ? "yes" : "no";
            case "open":
                session = factory.open(words[1]);
                return "open";
            case "session":
                return session(words[1]);
            case "use":
                use(words[1]);
                return "use";
            case "reference":
                return orb.object_to_string(object);
            default:
                return "unknown operation " + words[0];
        }
    }

    private String session(String operation) {
        switch (operation) {
            case "who":
                return session.who();
            case "count":
                return "" + session.count();
            default:
                session.close();
                return "close";
        }
    }

    private void blob(int size) {
        byte[] sent = new byte[size];
        for (int i = 0; i < size; i++) {
            sent[i] = (byte) (i * 31 + (i >> 8));
        }
        if (!java.util.Arrays.equals(sent, peer.blob(sent))) {
            throw new DATA_CONVERSION(1, CompletionStatus.COMPLETED_YES);
        }
    }

    /** Whether a value of that kind comes back as it went. */
    private boolean reflect(String kind) throws Exception {
        Any sent = orb.create_any();
        switch (kind) {
            case "long":
                sent.insert_long(-7);
                break;
            case "double":
                sent.insert_double(0.1);
                break;
            case "string":
                sent.insert_string("text");
                break;
            case "wstring":
                sent.insert_wstring("wide");
                break;
            case "alias":
                OctetsHelper.insert(sent, new byte[3]);
                break;
            case "nested":
                Any inner = orb.create_any();
                NameHelper.insert(inner, new NameComponent[] {
                    new NameComponent("host", ""), new NameComponent("", "kind")
                });
                sent.insert_any(inner);
                break;
            case "object":
                sent.insert_Object(object);
                break;
            case "exception":
                RefusedHelper.insert(sent, new Refused("why", 3));
                break;
            case "recursive":
                sent = recursive();
                break;
            default:
                throw new BAD_PARAM(1, CompletionStatus.COMPLETED_NO);
        }
        DynAny ours = dynamic().create_dyn_any(sent);
        DynAny theirs = dynamic().create_dyn_any(peer.reflect(sent));
        return ours.equal(theirs);
    }

    /** A node with one child: its TypeCode refers back to itself. */
    private Any recursive() throws Exception {
        String id = "IDL:evenkeel.org/PeerTest/Node:1.0";
        TypeCode self = orb.create_recursive_tc(id);
        StructMember[] members = {
            new StructMember("value", orb.get_primitive_tc(TCKind.tk_long), null),
            new StructMember("children", orb.create_sequence_tc(0, self), null),
        };
        TypeCode node = orb.create_struct_tc(id, "Node", members);
        DynStruct root = DynStructHelper.narrow(dynamic().create_dyn_any_from_type_code(node));
        root.insert_long(1);
        root.next();
        DynSequence children = DynSequenceHelper.narrow(root.current_component());
        children.set_length(1);
        return root.to_any();
    }

    private DynAnyFactory dynamic() throws Exception {
        return DynAnyFactoryHelper.narrow(orb.resolve_initial_references("DynAnyFactory"));
    }

    private volatile boolean ended;

    private void repeat(String[] arguments) throws Exception {
        List<String> operation = new ArrayList<>();
        long count = 0;
        long warm = 0;
        double rate = 0;
        boolean each = false;
        boolean latencies = false;
        for (int i = 0; i < arguments.length; i++) {
            switch (arguments[i]) {
                case "--count":
                    count = Long.parseLong(arguments[++i]);
                    break;
                case "--warm":
                    warm = Long.parseLong(arguments[++i]);
                    break;
                case "--rate":
                    rate = Double.parseDouble(arguments[++i]);
                    break;
                case "--each":
                    each = true;
                    break;
                case "--latencies":
                    latencies = true;
                    break;
                default:
                    operation.add(arguments[i]);
            }
        }
        String[] words = operation.toArray(new String[0]);
        if (count == 0) {
            Thread end = new Thread(() -> {
                Peer.waitForEnd();
                ended = true;
            });
            end.setDaemon(true);
            end.start();
        }
        Map<Long, Long> histogram = new TreeMap<>();
        String last = "";
        long calls = 0;
        long errors = 0;
        long start = System.nanoTime();
        long period = rate > 0 ? (long) (1e9 / rate) : 0;
        long due = start;
        while (count > 0 ? calls < count : !ended) {
            if (period > 0) {
                java.util.concurrent.locks.LockSupport.parkNanos(due - System.nanoTime());
                // What a moved or stopped member has held up is not made up for.
                due = Math.max(due + period, System.nanoTime() - period);
            }
            if (calls == warm) {
                start = System.nanoTime();
            }
            long sent = System.nanoTime();
            String answer = Peer.answer(this::call, words);
            if (latencies && calls >= warm) {
                double took = Math.max(1, System.nanoTime() - sent);
                histogram.merge((long) (Math.log(took) / Math.log(1.01)), 1L, Long::sum);
            }
            calls++;
            if (answer.startsWith("error ")) {
                errors++;
            }
            if (each) {
                Peer.say(answer);
            } else if (!answer.equals(last)) {
                Peer.say("bound " + answer);
            }
            last = answer;
        }
        if (latencies) {
            histogram.forEach((step, number) -> Peer.say("latency " + (long) Math.pow(1.01, step + 0.5) + " " + number));
        }
        Peer.say("done " + calls + " " + errors + " " + (System.nanoTime() - start) / 1e9);
    }
}
