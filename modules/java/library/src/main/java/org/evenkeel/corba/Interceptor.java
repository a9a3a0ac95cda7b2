package org.evenkeel.corba;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;
import org.omg.CORBA.Any;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.LocalObject;
import org.omg.CORBA.ORB;
import org.omg.CORBA.TCKind;
import org.omg.CORBA.TRANSIENT;
import org.omg.PortableInterceptor.ForwardRequest;
import org.omg.PortableInterceptor.InvalidSlot;
import org.omg.PortableInterceptor.ServerRequestInfo;
import org.omg.PortableInterceptor.ServerRequestInterceptor;

/**
 * Sees each request that the server gets: sends it back to the group while its location is
 * under an alert, and counts it.
 *
 * <p>While there is nothing to do, a request costs one volatile read.
 */
final class Interceptor extends LocalObject implements ServerRequestInterceptor {
    /** Under which initial reference the application finds it. */
    static final String NAME = "org.evenkeel.corba.Interceptor";

    /** The counters of a location. */
    static final class Counters {
        final LongAdder requests = new LongAdder();
        final LongAdder inFlight = new LongAdder();
        /** Put into a request's slot: says where it is counted. Null if nobody asks for those in flight. */
        private final Any mark;

        private Counters(Any mark) {
            this.mark = mark;
        }
    }

    /** An object to which the group sends clients. */
    static final class Target {
        private final String[] adapter;
        private final byte[] id;
        private final Counters counters;
        private final boolean shed;
        private final org.omg.CORBA.Object group;
        private Target next; // with the same place in the table

        /**
         * @param adapter the names of its object adapter and of those above it
         * @param id its id there
         * @param counters where its requests are counted, or null
         * @param shed whether its requests go back to the group
         * @param group the group; null if it has none
         */
        Target(String[] adapter, byte[] id, Counters counters, boolean shed, org.omg.CORBA.Object group) {
            this.adapter = adapter;
            this.id = id;
            this.counters = counters;
            this.shed = shed;
            this.group = group;
        }

        /** Whether it is the object with that id, of the request's adapter. */
        private boolean is(byte[] objectId, ServerRequestInfo info) {
            return Arrays.equals(id, objectId) && Arrays.equals(adapter, info.adapter_name());
        }

        private boolean isPassive() {
            return !shed && counters == null;
        }
    }

    /** What a location of this process wants of the interceptor. */
    interface Source {
        /** Adds its members; what a later one says of the same object counts. */
        void addTargets(List<Target> targets);

        /** Whether requests for objects that are no members are shed now, too. */
        boolean shedsOthers();
    }

    /** All that is wanted now, never changed once it is made. */
    private static final class Table {
        /** By the hash of their ids; a power of two of places. */
        private final Target[] targets;
        /** The adapter of our own objects, if requests for all but those are shed; or null. */
        private final String[] allBut;

        private Table(Collection<Target> all, String[] allBut) {
            targets = new Target[Math.max(4, Integer.highestOneBit(all.size()) * 4)];
            for (Target target : all) {
                int place = place(target.id);
                target.next = targets[place];
                targets[place] = target;
            }
            this.allBut = allBut;
        }

        private int place(byte[] id) {
            int hash = Arrays.hashCode(id);
            return (hash ^ hash >>> 16) & targets.length - 1;
        }

        private Target find(ServerRequestInfo info) {
            byte[] id = info.object_id();
            Target target = targets[place(id)];
            while (target != null && !target.is(id, info)) {
                target = target.next;
            }
            return target;
        }
    }

    private final int slot;
    private final List<Source> sources = new ArrayList<>();
    private String[] ownAdapter;
    private volatile Table table; // null while there is nothing to do
    /** By the number in their mark. Who finds a mark has read a table that was made after this. */
    private Counters[] marked = {};

    Interceptor(int slot) {
        this.slot = slot;
    }

    /** Says which object adapter has the alerts and monitors, whose requests are never shed. */
    synchronized void setOwnAdapter(String[] adapter) {
        ownAdapter = adapter;
    }

    synchronized void add(Source source) {
        sources.add(source);
        update();
    }

    /** New counters; requests in flight are counted only if asked for, as that needs a slot. */
    synchronized Counters counters(ORB orb, boolean inFlight) {
        if (!inFlight) {
            return new Counters(null);
        }
        int number = marked.length;
        Any mark = orb.create_any();
        mark.insert_long(number);
        Counters[] longer = Arrays.copyOf(marked, number + 1);
        longer[number] = new Counters(mark);
        marked = longer;
        return longer[number];
    }

    /** Asks the sources again what they want. */
    synchronized void update() {
        List<Target> all = new ArrayList<>();
        boolean others = false;
        for (Source source : sources) {
            source.addTargets(all);
            others |= source.shedsOthers();
        }
        // An object that has left may have joined again.
        Map<List<Object>, Target> last = new HashMap<>();
        all.forEach(target -> last.put(List.of(Arrays.asList(target.adapter), ByteBuffer.wrap(target.id)), target));
        if (!others) {
            last.values().removeIf(Target::isPassive);
        }
        boolean nothing = last.isEmpty() && !others;
        table = nothing ? null : new Table(last.values(), others ? ownAdapter : null);
    }

    @Override
    public void receive_request(ServerRequestInfo info) throws ForwardRequest {
        Table now = table;
        if (now != null) {
            receive(now, info);
        }
    }

    private void receive(Table now, ServerRequestInfo info) throws ForwardRequest {
        if (isExempt(info.operation())) {
            return;
        }
        // A oneway cannot be sent back, for nobody waits for the answer: it would be lost.
        boolean canGoBack = info.response_expected();
        Target target = now.find(info);
        if (target != null) {
            if (target.shed && canGoBack) {
                throw sendBack(target.group);
            }
            count(target.counters, info);
            return;
        }
        if (canGoBack && now.allBut != null && !Arrays.equals(now.allBut, info.adapter_name())) {
            throw sendBack(null);
        }
    }

    /** What the manager needs to see of a server under an alert: that it lives, and how it does. */
    private static boolean isExempt(String operation) {
        switch (operation) {
            case "_is_a":
            case "_non_existent":
            case "_not_existent": // the same in GIOP 1.0 and 1.1 of some ORBs
            case "_get_loads":
            case "enable_alert":
            case "disable_alert":
                return true;
            default:
                return false;
        }
    }

    /** Every client follows a forward; not every one tries again after TRANSIENT. */
    private static ForwardRequest sendBack(org.omg.CORBA.Object group) {
        if (group == null) {
            throw new TRANSIENT("this server is under a load alert", 0, CompletionStatus.COMPLETED_NO);
        }
        return new ForwardRequest(group);
    }

    private void count(Counters counters, ServerRequestInfo info) {
        if (counters == null) {
            return;
        }
        counters.requests.increment();
        if (counters.mark != null) {
            try {
                info.set_slot(slot, counters.mark); // see `sent`
                counters.inFlight.increment();
            } catch (InvalidSlot e) {
                throw new IllegalStateException("the ORB gave out a slot that it does not have", e);
            }
        }
    }

    /** Requests that ended before they were received have no mark, and neither have shed ones. */
    private void sent(ServerRequestInfo info) {
        Counters[] all = marked;
        if (all.length == 0) {
            return;
        }
        try {
            Any mark = info.get_slot(slot);
            if (mark != null && mark.type().kind() == TCKind.tk_long) {
                all[mark.extract_long()].inFlight.decrement();
            }
        } catch (InvalidSlot e) {
            throw new IllegalStateException("the ORB gave out a slot that it does not have", e);
        }
    }

    @Override
    public void send_reply(ServerRequestInfo info) {
        sent(info);
    }

    @Override
    public void send_exception(ServerRequestInfo info) {
        sent(info);
    }

    @Override
    public void send_other(ServerRequestInfo info) {
        sent(info);
    }

    @Override
    public void receive_request_service_contexts(ServerRequestInfo info) {}

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public void destroy() {}
}
