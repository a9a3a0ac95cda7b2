package org.evenkeel.trading;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.evenkeel.corba.LoadBalancing;
import org.evenkeel.corba.Location;
import org.evenkeel.trading.idl.NotEnough;
import org.evenkeel.trading.idl.Session;
import org.evenkeel.trading.idl.SessionFactoryHelper;
import org.evenkeel.trading.idl.SessionFactoryPOA;
import org.evenkeel.trading.idl.SessionHelper;
import org.evenkeel.trading.idl.SessionPOA;
import org.evenkeel.trading.idl.UnknownSymbol;
import org.omg.CORBA.Any;
import org.omg.CORBA.ORB;
import org.omg.CORBA.UNKNOWN;
import org.omg.CORBA.UserException;
import org.omg.CosLoadBalancing.PortableGroup.Property;
import org.omg.CosLoadBalancing.StrategyInfo;
import org.omg.CosLoadBalancing.StrategyInfoHelper;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;

/**
 * A server of sessions, which joins the group {@code stock} at a location.
 *
 * <p>{@code Server LOCATION -ORBInitRef LoadManager=corbaloc:iiop:HOST:PORT/LoadManager}
 *
 * <p>Its load is how many sessions are open. When it is asked to end (SIGTERM) it leaves, and ends when
 * its last session is closed.
 */
public final class Server {
    /** The load that it tells: any number that nothing else has. */
    private static final int OPEN_SESSIONS = 1000;

    private static final Map<String, Double> PRICES = Map.of("ACME", 12.5, "KEEL", 48.0, "MAST", 7.25, "SAIL", 103.1);

    private final ORB orb;
    private final POA root;
    private final String name;
    private final AtomicInteger sessions = new AtomicInteger();

    private Server(ORB orb, String name) throws Exception {
        this.orb = orb;
        this.name = name;
        root = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
        root.the_POAManager().activate();
    }

    /** Runs it. */
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            System.err.println("usage: Server LOCATION -ORBInitRef LoadManager=…");
            System.exit(2);
        }
        // The properties bring the interceptor, through which load alerts work.
        ORB orb = ORB.init(arguments, LoadBalancing.properties());
        new Server(orb, arguments[0]).run();
    }

    private void run() throws Exception {
        org.omg.CORBA.Object factory = root.servant_to_reference(new Factory());
        LoadBalancing balancing = LoadBalancing.with(orb);
        org.omg.CORBA.Object group = balancing.group("stock", SessionFactoryHelper.id(), properties());
        Location here = balancing
                .at(name)
                .load(OPEN_SESSIONS, sessions::get)
                .push(Duration.ofSeconds(1))
                .open();
        here.join(group, factory);
        System.out.println(name + ": in the group");
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            here.close();
            waitForSessions();
        }));
        orb.run();
    }

    /** The least loaded server gets the next session; one that is full sheds. */
    private Property[] properties() {
        String prefix = "org.omg.CosLoadBalancing.Strategy.LeastLoaded";
        Property[] settings = {
            LoadBalancing.property(prefix + ".CriticalThreshold", number(100)),
            // Until its next report, each new session counts for one there.
            LoadBalancing.property(prefix + ".PerBalanceLoad", number(1)),
        };
        Any strategy = orb.create_any();
        StrategyInfoHelper.insert(strategy, new StrategyInfo("LeastLoaded", settings));
        Any load = orb.create_any();
        load.insert_ulong(OPEN_SESSIONS);
        return new Property[] {
            LoadBalancing.property("org.omg.CosLoadBalancing.StrategyInfo", strategy),
            LoadBalancing.property("org.evenkeel.LoadId", load),
        };
    }

    private Any number(float value) {
        Any any = orb.create_any();
        any.insert_float(value);
        return any;
    }

    private void waitForSessions() {
        try {
            while (sessions.get() > 0) {
                Thread.sleep(100);
            }
        } catch (InterruptedException e) {
            // Then at once.
        }
    }

    private final class Factory extends SessionFactoryPOA {
        @Override
        public Session open(String trader, double cash) {
            System.out.println(name + ": a session for " + trader);
            try {
                Session session = SessionHelper.narrow(root.servant_to_reference(new Trade(cash)));
                sessions.incrementAndGet();
                return session;
            } catch (UserException e) {
                throw new UNKNOWN(e.toString());
            }
        }
    }

    private final class Trade extends SessionPOA {
        private final Map<String, Integer> owned = new HashMap<>();
        private double cash;

        Trade(double cash) {
            this.cash = cash;
        }

        @Override
        public String server() {
            return name;
        }

        @Override
        public double quote(String symbol) throws UnknownSymbol {
            Double price = PRICES.get(symbol);
            if (price == null) {
                throw new UnknownSymbol();
            }
            return price;
        }

        @Override
        public synchronized double trade(String symbol, int shares) throws UnknownSymbol, NotEnough {
            double cost = quote(symbol) * shares;
            long left = owned.getOrDefault(symbol, 0) + (long) shares;
            if (cost > cash || left < 0 || left > Integer.MAX_VALUE) {
                throw new NotEnough();
            }
            owned.put(symbol, (int) left);
            cash -= cost;
            return cash;
        }

        @Override
        public void close() {
            try {
                root.deactivate_object(root.servant_to_id(this));
                sessions.decrementAndGet();
            } catch (UserException e) {
                throw new UNKNOWN(e.toString());
            }
        }
    }
}
