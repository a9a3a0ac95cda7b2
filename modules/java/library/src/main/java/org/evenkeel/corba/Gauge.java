package org.evenkeel.corba;

import java.lang.management.ManagementFactory;
import java.util.function.DoubleSupplier;
import java.util.function.LongSupplier;

/** A load that is measured when somebody asks for it. */
final class Gauge {
    private static final System.Logger LOG = System.getLogger(LoadBalancing.class.getName());

    /** The identity of the load: a {@code CosLoadBalancing::LoadId}. */
    final int id;

    private final DoubleSupplier value;
    private boolean failed;

    Gauge(int id, DoubleSupplier value) {
        this.id = id;
        this.value = value;
    }

    /** The load now; a number below 0 if it cannot be measured. */
    double measure() {
        try {
            double measured = value.getAsDouble();
            failed = false;
            return measured >= 0 && measured < Double.POSITIVE_INFINITY ? measured : -1;
        } catch (RuntimeException e) {
            if (!failed) {
                LOG.log(System.Logger.Level.WARNING, "load " + id + " cannot be measured, it is left out", e);
            }
            failed = true;
            return -1;
        }
    }

    /** Share of the machine's CPU time that this process uses, 0 to 1. */
    static DoubleSupplier processCpu() {
        com.sun.management.OperatingSystemMXBean system = system();
        DoubleSupplier nanos = new Rate(system::getProcessCpuTime);
        return () -> nanos.getAsDouble() / 1e9 / system.getAvailableProcessors();
    }

    /** Share of the machine's CPU time that is used, 0 to 1; in a container, of what it may use. */
    static DoubleSupplier hostCpu() {
        return system()::getSystemCpuLoad;
    }

    private static com.sun.management.OperatingSystemMXBean system() {
        return (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    }

    /** How fast a total grows: per second, since it was last measured. */
    static final class Rate implements DoubleSupplier {
        /** Several may ask: the manager's pull, and our push. Over less time nothing can be said. */
        static final long SHORTEST = 100_000_000;

        private final LongSupplier total;
        private long lastTotal;
        private long lastTime = System.nanoTime();
        private double rate;

        Rate(LongSupplier total) {
            this.total = total;
            this.lastTotal = total.getAsLong();
        }

        @Override
        public synchronized double getAsDouble() {
            long time = System.nanoTime();
            if (time - lastTime >= SHORTEST) {
                long now = total.getAsLong();
                rate = (now - lastTotal) * 1e9 / (time - lastTime);
                lastTotal = now;
                lastTime = time;
            }
            return rate;
        }
    }
}
