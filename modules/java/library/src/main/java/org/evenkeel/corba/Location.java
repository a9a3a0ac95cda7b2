package org.evenkeel.corba;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.omg.CORBA.COMM_FAILURE;
import org.omg.CORBA.SystemException;
import org.omg.CORBA.TRANSIENT;
import org.omg.CORBA.UserException;
import org.omg.CosLoadBalancing.Load;
import org.omg.CosLoadBalancing.LoadAlert;
import org.omg.CosLoadBalancing.LoadAlertAlreadyPresent;
import org.omg.CosLoadBalancing.LoadAlertHelper;
import org.omg.CosLoadBalancing.LoadAlertNotFound;
import org.omg.CosLoadBalancing.LoadAlertPOA;
import org.omg.CosLoadBalancing.LoadManager;
import org.omg.CosLoadBalancing.LoadManagerHelper;
import org.omg.CosLoadBalancing.LoadMonitor;
import org.omg.CosLoadBalancing.LoadMonitorHelper;
import org.omg.CosLoadBalancing.LoadMonitorPOA;
import org.omg.CosLoadBalancing.LocationNotFound;
import org.omg.CosLoadBalancing.MonitorAlreadyPresent;
import org.omg.CosLoadBalancing.StrategyNotAdaptive;
import org.omg.CosNaming.NameComponent;
import org.omg.PortableServer.POAPackage.ServantAlreadyActive;
import org.omg.PortableServer.POAPackage.ServantNotActive;
import org.omg.PortableServer.POAPackage.WrongPolicy;
import org.omg.PortableServer.Servant;

/** A location of this process: its load, its alert, and the members that are there. */
public final class Location implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(LoadBalancing.class.getName());
    /** How long a question may take that must not hold up the others. */
    private static final Duration SHORT = Duration.ofSeconds(2);
    /** How often the manager is looked for while the location is under its alert. */
    private static final Duration WATCH = Duration.ofSeconds(1);

    private final LoadBalancing balancing;
    private final String name;
    private final NameComponent[] components;
    private final Interceptor.Counters counters; // null if nothing is counted
    private final List<Gauge> gauges = new ArrayList<>();
    private final boolean shedsOthers;
    private final Duration push;
    private final Duration rejoin;
    private final LoadAlert alert;
    private final LoadMonitor monitor; // null if nothing is measured
    private final List<Member> members = new CopyOnWriteArrayList<>();
    private final ScheduledExecutorService keeper;

    private volatile boolean alerted;
    /** The same, once requests are sent back. */
    private volatile boolean alertInForce;
    private volatile boolean managerLost;
    private volatile boolean closed;
    private volatile String deadAddress; // of a process before this one

    // Of the keeper's thread:
    private LoadManager manager;
    private LoadManager quickManager; // the same with a shorter limit
    private long nextRejoin;
    private boolean notAdaptive;

    private Location(LocationBuilder how) {
        balancing = how.balancing;
        name = how.name;
        components = how.components;
        shedsOthers = how.shedsOthers;
        push = how.push;
        rejoin = how.rejoin;
        counters = how.counts ? balancing.interceptor().counters(balancing.orb(), how.countsInFlight) : null;
        how.gauges.forEach(gauge -> gauges.add(gauge.apply(counters)));
        alert = LoadAlertHelper.unchecked_narrow(activate(new Alert()));
        monitor = gauges.isEmpty() ? null : LoadMonitorHelper.unchecked_narrow(activate(new Monitor()));
        keeper = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "load of " + name);
            thread.setDaemon(true);
            return thread;
        });
    }

    static Location open(LocationBuilder how) throws InterruptedException {
        Location location = new Location(how);
        location.balancing.interceptor().add(location.source);
        try {
            Patience.FOREVER.with("register the alert of " + location, location.balancing, () -> {
                location.register();
                return null;
            });
        } catch (InterruptedException | RuntimeException e) {
            location.close();
            throw e;
        } catch (UserException e) {
            location.close();
            throw new IllegalStateException("the manager refuses the alert or the monitor of " + location, e);
        }
        long period = (location.push.isZero() ? WATCH : location.push).toMillis();
        location.keeper.scheduleWithFixedDelay(location::keep, period, period, TimeUnit.MILLISECONDS);
        return location;
    }

    /**
     * Adds an object of this process to a group.
     *
     * <p>Waits until the manager answers. A member that a server which crashed has left at this
     * location is replaced.
     *
     * @param group the group's reference
     * @param reference the object; its adapter's manager is active
     * @throws org.omg.CosLoadBalancing.PortableGroup.MemberAlreadyPresent if a member lives at this
     *     location
     * @throws UserException another one of {@code add_member}'s: {@code ObjectGroupNotFound}, or {@code
     *     ObjectNotAdded} if it does not have the group's interface
     */
    public Member join(org.omg.CORBA.Object group, org.omg.CORBA.Object reference)
            throws UserException, InterruptedException {
        Member member = new Member(this, group, reference);
        // First here: from the moment in which the manager knows it there may be clients.
        members.add(member);
        changed();
        try {
            Patience.FOREVER.with("add the member at " + this, balancing, () -> {
                member.add();
                return null;
            });
        } catch (UserException | InterruptedException | RuntimeException e) {
            members.remove(member);
            changed();
            throw e;
        }
        changed(); // It has the manager's reference of the group now.
        return member;
    }

    /** Whether its members send their clients back to their groups now. */
    public boolean isAlerted() {
        return alertInForce && !managerLost;
    }

    /** What the interceptor is to do from its next update on. */
    private boolean sheds() {
        // Nobody is sent to a manager that is not there.
        return alerted && !managerLost;
    }

    /** What its monitor says now. */
    public synchronized Load[] loads() {
        List<Load> loads = new ArrayList<>(gauges.size());
        for (Gauge gauge : gauges) {
            double measured = gauge.measure();
            if (measured >= 0) {
                loads.add(new Load(gauge.id, (float) measured));
            }
        }
        return loads.toArray(new Load[0]);
    }

    /**
     * Takes its members out of their groups, and its monitor and its alert from the manager.
     *
     * <p>The objects still answer until the ORB ends, but requests for the members are sent back to
     * the groups, so that no client sees the end of the server. If the manager does not answer it is
     * only logged.
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        keeper.shutdownNow();
        members.forEach(Member::close);
        leave("monitor", () -> {
            if (monitor != null && balancing.manager().get_load_monitor(components)._is_equivalent(monitor)) {
                balancing.manager().remove_load_monitor(components);
            }
            return null;
        });
        leave("alert", () -> {
            if (balancing.manager().get_load_alert(components)._is_equivalent(alert)) {
                balancing.manager().remove_load_alert(components);
            }
            return null;
        });
    }

    private void leave(String what, Patience.Attempt<Void> attempt) {
        try {
            Patience.NONE.with("remove the " + what, balancing, attempt);
        } catch (LocationNotFound | LoadAlertNotFound e) {
            // It was not there.
        } catch (UserException | SystemException e) {
            LOG.log(System.Logger.Level.WARNING, "the " + what + " of " + this + " could not be removed: " + e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** Its name. */
    @Override
    public String toString() {
        return name;
    }

    LoadBalancing balancing() {
        return balancing;
    }

    NameComponent[] components() {
        return components;
    }

    void changed() {
        balancing.interceptor().update();
    }

    /** Whether what the manager has at this location is our own, or was left by a dead process. */
    boolean mayReplace(org.omg.CORBA.Object old, org.omg.CORBA.Object own) {
        return old._is_equivalent(own) || isGone(old);
    }

    /**
     * Whether nobody answers for an object. A process that crashed has left several, and to find out
     * takes an ORB seconds, so where nobody listens is asked only once.
     */
    private boolean isGone(org.omg.CORBA.Object reference) {
        String address = balancing.address(reference);
        if (address.equals(deadAddress)) {
            return true;
        }
        try {
            return balancing.within(SHORT, reference)._non_existent();
        } catch (SystemException e) {
            if (e instanceof TRANSIENT || e instanceof COMM_FAILURE) {
                deadAddress = address;
            }
            return Patience.isGone(e);
        }
    }

    private final Interceptor.Source source = new Interceptor.Source() {
        @Override
        public void addTargets(List<Interceptor.Target> targets) {
            boolean shed = sheds();
            members.forEach(member -> member.addTarget(targets, counters, shed));
        }

        @Override
        public boolean shedsOthers() {
            return shedsOthers && sheds();
        }
    };

    /** The object through which the manager says that this location is overloaded. */
    private final class Alert extends LoadAlertPOA {
        @Override
        public void enable_alert() {
            set(true);
        }

        @Override
        public void disable_alert() {
            set(false);
        }

        private void set(boolean on) {
            if (alerted != on) {
                LOG.log(System.Logger.Level.INFO, "the alert of " + name + " is " + (on ? "on" : "off"));
            }
            alerted = on;
            managerLost = false; // It has just spoken.
            changed();
            alertInForce = on;
        }
    }

    /** The object that the manager asks for the load. */
    private final class Monitor extends LoadMonitorPOA {
        @Override
        public NameComponent[] the_location() {
            return components;
        }

        @Override
        public Load[] loads() {
            return Location.this.loads();
        }
    }

    private org.omg.CORBA.Object activate(Servant servant) {
        try {
            balancing.adapter().activate_object(servant);
            return balancing.adapter().servant_to_reference(servant);
        } catch (ServantAlreadyActive | ServantNotActive | WrongPolicy e) {
            throw new IllegalStateException("our own adapter refuses an object", e);
        }
    }

    /** Makes sure that the manager has the alert and the monitor. */
    private void register() throws UserException {
        try {
            balancing.manager().register_load_alert(components, alert);
        } catch (LoadAlertAlreadyPresent e) {
            LoadAlert old = balancing.manager().get_load_alert(components);
            if (!old._is_equivalent(alert)) {
                makeRoom("alert", old);
                balancing.manager().remove_load_alert(components);
                balancing.manager().register_load_alert(components, alert);
            }
        }
        if (monitor == null) {
            return;
        }
        try {
            balancing.manager().register_load_monitor(components, monitor);
        } catch (MonitorAlreadyPresent e) {
            LoadMonitor old = balancing.manager().get_load_monitor(components);
            if (!old._is_equivalent(monitor)) {
                makeRoom("monitor", old);
                balancing.manager().remove_load_monitor(components);
                balancing.manager().register_load_monitor(components, monitor);
            }
        }
    }

    private void makeRoom(String what, org.omg.CORBA.Object old) {
        if (!isGone(old)) {
            throw new IllegalStateException("another process has the " + what + " of " + this
                    + "; each process needs a location of its own");
        }
    }

    /** Pushes the load, and sees whether the manager is there. */
    private void keep() {
        try {
            LoadManager now = balancing.manager();
            if (now != manager) {
                manager = now;
                quickManager = LoadManagerHelper.unchecked_narrow(balancing.within(SHORT, now));
            }
            if (!push() && alerted) {
                quickManager._non_existent();
            }
            setManagerLost(false);
            if (!rejoin.isZero() && System.nanoTime() - nextRejoin >= 0) {
                nextRejoin = System.nanoTime() + rejoin.toNanos();
                deadAddress = null; // Another process may have it now.
                register();
                for (Member member : members) {
                    member.rejoin();
                }
                changed();
            }
        } catch (SystemException e) {
            balancing.managerFailed();
            if (!closed && Patience.isGone(e)) {
                setManagerLost(true);
            }
        } catch (UserException | RuntimeException e) {
            if (!closed) {
                LOG.log(System.Logger.Level.WARNING, "the manager refuses what " + this + " wants: " + e);
            }
        }
    }

    /** Whether there was something to push. */
    private boolean push() {
        Load[] loads = push.isZero() ? new Load[0] : loads();
        if (loads.length == 0) {
            return false;
        }
        try {
            quickManager.push_loads(components, loads);
            notAdaptive = false;
        } catch (StrategyNotAdaptive e) {
            if (!notAdaptive) {
                LOG.log(System.Logger.Level.WARNING, "no strategy wants the load of " + this);
            }
            notAdaptive = true;
        }
        return true;
    }

    private void setManagerLost(boolean lost) {
        if (managerLost == lost) {
            return;
        }
        managerLost = lost;
        LOG.log(System.Logger.Level.WARNING, "the manager " + (lost ? "does not answer" : "answers again")
                + (alerted ? lost ? ", so the alert is lifted" : ", and the alert is on" : ""));
        changed();
    }
}
