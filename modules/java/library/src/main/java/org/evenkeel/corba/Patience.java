package org.evenkeel.corba;

import java.time.Duration;
import org.omg.CORBA.COMM_FAILURE;
import org.omg.CORBA.NO_RESPONSE;
import org.omg.CORBA.OBJECT_NOT_EXIST;
import org.omg.CORBA.SystemException;
import org.omg.CORBA.TIMEOUT;
import org.omg.CORBA.TRANSIENT;

/** How often something is tried that the manager may not answer now. */
enum Patience {
    /** Until it is done, or the thread is interrupted. */
    FOREVER,
    /** Once: the server is about to end. */
    NONE;

    private static final System.Logger LOG = System.getLogger(LoadBalancing.class.getName());
    private static final Duration PAUSE = Duration.ofSeconds(1);

    /** A call of the manager. */
    interface Attempt<T> {
        T run() throws org.omg.CORBA.UserException;
    }

    /** Calls the manager until it answers. */
    <T> T with(String what, LoadBalancing balancing, Attempt<T> attempt)
            throws org.omg.CORBA.UserException, InterruptedException {
        for (boolean first = true; ; first = false) {
            try {
                return attempt.run();
            } catch (SystemException e) {
                balancing.managerFailed();
                if (this == NONE || !isGone(e)) {
                    throw e;
                }
                if (first) {
                    LOG.log(System.Logger.Level.WARNING, "cannot " + what + " yet, the manager does not answer: " + e);
                }
                Thread.sleep(PAUSE.toMillis());
            }
        }
    }

    /** Whether it says that nobody answers for an object. */
    static boolean isGone(SystemException e) {
        return e instanceof TRANSIENT
                || e instanceof COMM_FAILURE
                || e instanceof TIMEOUT
                || e instanceof NO_RESPONSE
                || e instanceof OBJECT_NOT_EXIST;
    }
}
