package org.evenkeel.corba;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.DoubleSupplier;
import java.util.function.Supplier;

/** Loads of the machine, as Linux counts them in {@code /proc}. */
final class Host {
    /** Entries of {@code /proc/diskstats} that are no disks: memory, and files of other disks. */
    private static final List<String> UNREAL = List.of("loop", "ram", "zram", "sr", "fd");

    private static final Path INTERFACES = Path.of("/sys/class/net");

    private Host() {}

    /** Share of memory in use, 0 to 1, without what the kernel can take back. */
    static DoubleSupplier memory() {
        return () -> {
            double total = -1;
            double available = -1;
            for (String line : lines("/proc/meminfo")) {
                String[] fields = line.trim().split("\\s+");
                if (fields[0].equals("MemTotal:")) {
                    total = Double.parseDouble(fields[1]);
                } else if (fields[0].equals("MemAvailable:")) {
                    available = Double.parseDouble(fields[1]);
                }
            }
            return total > 0 && available >= 0 ? Math.max(1 - available / total, 0) : -1;
        };
    }

    /** Share of time in which the busiest disk had something to do, 0 to 1. */
    static DoubleSupplier disk() {
        return new Busiest(Host::disks);
    }

    /**
     * Share of the busiest network interface's capacity in use, in its busier direction, 0 to 1.
     *
     * @param capacity in bits per second each way; 0 takes the speed that each interface tells
     */
    static DoubleSupplier network(double capacity) {
        return new Busiest(() -> interfaces(capacity));
    }

    /** Seconds in which each disk had something to do. */
    private static Map<String, Double> disks() {
        Map<String, Double> counts = new HashMap<>();
        for (String line : lines("/proc/diskstats")) {
            String[] fields = line.trim().split("\\s+");
            if (fields.length > 12 && UNREAL.stream().noneMatch(fields[2]::startsWith)) {
                counts.put(fields[2], Double.parseDouble(fields[12]) / 1e3);
            }
        }
        return counts;
    }

    /** Seconds for which each direction of each interface would have been busy at its full speed. */
    private static Map<String, Double> interfaces(double capacity) {
        Map<String, String[]> found = new HashMap<>();
        boolean any = false;
        for (String line : lines("/proc/self/net/dev")) {
            int colon = line.lastIndexOf(':'); // an alias has one in its name, too
            if (colon < 0) {
                continue;
            }
            String name = line.substring(0, colon).trim();
            String[] counters = line.substring(colon + 1).trim().split("\\s+");
            if (!name.equals("lo") && counters.length > 8) {
                found.put(name, counters);
                any |= hasDevice(name);
            }
        }
        Map<String, Double> counts = new HashMap<>();
        for (Map.Entry<String, String[]> one : found.entrySet()) {
            String name = one.getKey();
            double speed = capacity > 0 ? capacity : speed(name);
            // In a container no interface has a device behind it: there all of them count.
            if (speed > 0 && (!any || hasDevice(name))) {
                counts.put(name + " received", Double.parseDouble(one.getValue()[0]) * 8 / speed);
                counts.put(name + " sent", Double.parseDouble(one.getValue()[8]) * 8 / speed);
            }
        }
        return counts;
    }

    private static boolean hasDevice(String name) {
        return Files.exists(INTERFACES.resolve(name).resolve("device"));
    }

    /** Bits per second that an interface tells; 0 if it does not know. */
    private static double speed(String name) {
        try {
            String text = Files.readString(INTERFACES.resolve(name).resolve("speed")).trim();
            return Math.max(Double.parseDouble(text), 0) * 1e6;
        } catch (IOException | NumberFormatException e) {
            return 0; // those of virtual machines answer with an error
        }
    }

    private static List<String> lines(String path) {
        try {
            return Files.readAllLines(Path.of(path));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The busiest of several devices, between one call and the next; below 0 if nothing can be compared. */
    private static final class Busiest implements DoubleSupplier {
        private final Supplier<Map<String, Double>> counter;
        private Map<String, Double> counts;
        private long time = System.nanoTime();
        private double share = -1;

        Busiest(Supplier<Map<String, Double>> counter) {
            this.counter = counter;
        }

        @Override
        public synchronized double getAsDouble() {
            long now = System.nanoTime();
            if (counts != null && now - time < Gauge.Rate.SHORTEST) {
                return share;
            }
            Map<String, Double> before = counts;
            counts = counter.get();
            share = before == null ? -1 : busiest(before, (now - time) / 1e9);
            time = now;
            return share;
        }

        private double busiest(Map<String, Double> before, double seconds) {
            double most = -1;
            for (Map.Entry<String, Double> one : counts.entrySet()) {
                Double earlier = before.get(one.getKey());
                // A device that is new, or has begun to count again: next time.
                if (earlier != null && one.getValue() >= earlier) {
                    most = Math.max(most, Math.min((one.getValue() - earlier) / seconds, 1));
                }
            }
            return most;
        }
    }
}
