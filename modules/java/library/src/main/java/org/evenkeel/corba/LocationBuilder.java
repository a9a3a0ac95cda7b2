package org.evenkeel.corba;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.DoubleSupplier;
import java.util.function.Function;
import org.omg.CosNaming.NameComponent;

/** What a {@link Location} measures, and how it behaves. */
public final class LocationBuilder {
    final LoadBalancing balancing;
    final String name;
    final NameComponent[] components;
    final List<Function<Interceptor.Counters, Gauge>> gauges = new ArrayList<>();
    boolean counts;
    boolean countsInFlight;
    boolean shedsOthers;
    Duration push = Duration.ZERO;
    Duration rejoin = Duration.ofSeconds(10);

    LocationBuilder(LoadBalancing balancing, String name, NameComponent[] components) {
        this.balancing = balancing;
        this.name = name;
        this.components = components;
    }

    /** CPU time that this process uses, as a share of all the machine's CPUs: load 0. */
    public LocationBuilder cpu() {
        return load(0, Gauge.processCpu());
    }

    /** CPU time that is used on the machine, by all processes: load 0. */
    public LocationBuilder hostCpu() {
        return load(0, Gauge.hostCpu());
    }

    /** Memory of the machine in use, 0 to 1, without what the kernel can take back: load 2. */
    public LocationBuilder hostMemory() {
        return load(2, Host.memory());
    }

    /** Share of time in which the machine's busiest disk had something to do, 0 to 1: load 1. */
    public LocationBuilder hostDisk() {
        return load(1, Host.disk());
    }

    /**
     * Share of the busiest network interface's capacity in use, in its busier direction, 0 to 1: load 3.
     *
     * <p>Interfaces of virtual machines do not tell their speed. Without any that does, the load is left
     * out; use {@link #hostNetwork(double)} there.
     */
    public LocationBuilder hostNetwork() {
        return load(3, Host.network(0));
    }

    /**
     * Share of the network's capacity in use by the busiest interface, in its busier direction, 0 to 1: load 3.
     *
     * @param capacity of the network in bits per second each way, above 0
     */
    public LocationBuilder hostNetwork(double capacity) {
        if (!(capacity > 0 && capacity < Double.POSITIVE_INFINITY)) {
            throw new IllegalArgumentException("a network's capacity cannot be " + capacity + " bits per second");
        }
        return load(3, Host.network(capacity));
    }

    /** Requests per second to the members at this location: load 4. */
    public LocationBuilder requestsPerSecond() {
        counts = true;
        gauges.add(counters -> new Gauge(4, new Gauge.Rate(counters.requests::sum)));
        return this;
    }

    /** Requests that the members at this location are working on: load 17. */
    public LocationBuilder inFlight() {
        counts = true;
        countsInFlight = true;
        gauges.add(counters -> new Gauge(17, counters.inFlight::sum));
        return this;
    }

    /**
     * A load that the application measures.
     *
     * @param id a {@code CosLoadBalancing::LoadId}, or any other number that the group is set to
     * @param value is asked whenever the load is reported, by one thread at a time; a number below 0,
     *     or an exception, leaves it out
     */
    public LocationBuilder load(int id, DoubleSupplier value) {
        gauges.add(counters -> new Gauge(id, value));
        return this;
    }

    /**
     * Pushes the loads to the manager, besides answering when it asks (every 5 seconds, unless it is
     * set otherwise).
     *
     * @param period how often, from 10 ms
     */
    public LocationBuilder push(Duration period) {
        if (period.compareTo(Duration.ofMillis(10)) < 0) {
            throw new IllegalArgumentException("loads cannot be pushed every " + period + ", at most every 10 ms");
        }
        push = period;
        return this;
    }

    /**
     * How often it is made sure that the manager still knows the members, the alert and the monitor:
     * it forgets a member that did not answer for a while. 10 seconds, unless it is set.
     *
     * @param period from 100 ms; zero for never
     */
    public LocationBuilder rejoin(Duration period) {
        if (!period.isZero() && period.compareTo(Duration.ofMillis(100)) < 0) {
            throw new IllegalArgumentException("it cannot be checked every " + period + ", at most every 100 ms");
        }
        rejoin = period;
        return this;
    }

    /**
     * Sheds requests for all other objects of this process, too, while the location is under an alert:
     * they get TRANSIENT. Otherwise only requests for members are shed, and the sessions that they have
     * opened go on.
     */
    public LocationBuilder shedOthers() {
        shedsOthers = true;
        return this;
    }

    /**
     * Registers the location's alert, and its monitor if there is a load to measure.
     *
     * <p>Waits until the manager answers, however long that takes. What a server that crashed has left
     * there is replaced.
     *
     * @throws IllegalStateException if another living process has this location
     */
    public Location open() throws InterruptedException {
        return Location.open(this);
    }
}
