package org.evenkeel.trading;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.evenkeel.trading.idl.Session;
import org.evenkeel.trading.idl.SessionFactory;
import org.evenkeel.trading.idl.SessionFactoryHelper;
import org.omg.CORBA.ORB;

/**
 * Opens sessions and trades through them. It knows nothing of the balancer: the reference of the group
 * is that of a session factory.
 *
 * <p>{@code Client corbaloc:iiop:HOST:PORT/group/stock [SESSIONS]}
 */
public final class Client {
    private Client() {}

    /** Runs it. */
    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 0) {
            System.err.println("usage: Client REFERENCE [SESSIONS]");
            System.exit(2);
        }
        ORB orb = ORB.init(arguments, System.getProperties());
        int count = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 12;
        List<Session> sessions = new ArrayList<>();
        Map<String, Integer> servers = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            // A reference of its own for each session, as if each came from another client: a client
            // that is bound stays where it is.
            SessionFactory factory = SessionFactoryHelper.unchecked_narrow(orb.string_to_object(arguments[0]));
            Session session = factory.open("somebody", 10000);
            trade(session);
            servers.merge(session.server(), 1, Integer::sum);
            sessions.add(session);
        }
        servers.forEach((server, number) -> System.out.println(number + " sessions at " + server));
        sessions.forEach(Session::close);
        orb.shutdown(true);
    }

    private static void trade(Session session) throws org.omg.CORBA.UserException {
        session.trade("KEEL", 10);
        session.trade("ACME", 20);
        double cash = session.trade("KEEL", -5);
        if (cash != 10000 - 480 - 250 + 240) {
            throw new IllegalStateException("the cash is " + cash);
        }
    }
}
