package org.evenkeel.peer;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.evenkeel.corba.LoadBalancing;
import org.evenkeel.peer.idl.Refused;
import org.evenkeel.peer.idl.RefusedHelper;
import org.omg.CORBA.ORB;
import org.omg.CORBA.SystemException;
import org.omg.CORBA.UserException;
import org.omg.CosLoadBalancing.PortableGroup.InvalidProperty;
import org.omg.CosLoadBalancing.PortableGroup.UnsupportedProperty;

/**
 * Unmodified JacORB as a server or client, driven by a test.
 *
 * <pre>
 * Peer server NAME [-ORB…]         see Server
 * Peer client REFERENCE … [-ORB…]  see Client
 * Peer manager [-ORB…]             see Manager
 * </pre>
 */
final class Peer {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final BufferedReader IN =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    private Peer() {}

    public static void main(String[] all) throws Exception {
        // A client is as plain as can be; only servers need anything of us.
        boolean server = all[0].equals("server");
        ORB orb = ORB.init(all, server ? LoadBalancing.properties() : System.getProperties());
        // JacORB leaves its own arguments where they are.
        String[] arguments = withoutOrbOptions(Arrays.copyOfRange(all, 1, all.length));
        switch (all[0]) {
            case "server":
                new Server(orb, arguments[0]).run();
                break;
            case "client":
                new Client(orb, arguments[0]).run(Arrays.copyOfRange(arguments, 1, arguments.length));
                break;
            case "manager":
                new Manager(orb).run();
                break;
            default:
                throw new IllegalArgumentException("usage: Peer server NAME | client REFERENCE … | manager");
        }
        orb.shutdown(false);
        System.exit(0);
    }

    private static String[] withoutOrbOptions(String[] arguments) {
        java.util.List<String> rest = new java.util.ArrayList<>();
        for (int i = 0; i < arguments.length; i++) {
            if (arguments[i].startsWith("-ORB")) {
                i++;
            } else {
                rest.add(arguments[i]);
            }
        }
        return rest.toArray(new String[0]);
    }

    /** One line on standard output, at once: the test waits for it. */
    static void say(String line) {
        OUT.println(line);
    }

    /** What a line of the script leads to. */
    interface Command {
        String run(String[] words) throws Exception;
    }

    /** Does what the lines on standard input say, and answers each with a line. */
    static void follow(Command command) throws Exception {
        for (String line = IN.readLine(); line != null; line = IN.readLine()) {
            say(answer(command, line.trim().split(" +")));
        }
    }

    /** Reads standard input to its end. */
    static void waitForEnd() {
        try {
            while (IN.readLine() != null) {}
        } catch (java.io.IOException e) {
            // It has ended.
        }
    }

    /** A command's answer, or the exception: `error NAME MINOR COMPLETED`, `error REPOSITORY-ID`. */
    static String answer(Command command, String[] words) {
        try {
            return command.run(words);
        } catch (SystemException e) {
            String[] completed = {"COMPLETED_YES", "COMPLETED_NO", "COMPLETED_MAYBE"};
            return "error " + e.getClass().getSimpleName() + " 0x" + Integer.toHexString(e.minor) + " "
                    + completed[e.completed.value()];
        } catch (Refused e) {
            return "error " + RefusedHelper.id() + " " + e.why + " " + e.code;
        } catch (InvalidProperty e) {
            return "error " + id(e) + " " + e.nam[0].id;
        } catch (UnsupportedProperty e) {
            return "error " + id(e) + " " + e.nam[0].id;
        } catch (UserException e) {
            return "error " + id(e);
        } catch (Exception e) {
            e.printStackTrace();
            return "failed " + e;
        }
    }

    /** The repository id of an exception, which its generated helper knows. */
    private static String id(UserException e) {
        try {
            Class<?> helper = Class.forName(e.getClass().getName() + "Helper");
            return (String) helper.getMethod("id").invoke(null);
        } catch (ReflectiveOperationException none) {
            return e.getClass().getName();
        }
    }
}
