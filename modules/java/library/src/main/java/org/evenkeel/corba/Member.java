package org.evenkeel.corba;

import java.util.List;
import org.omg.CORBA.SystemException;
import org.omg.CORBA.UserException;
import org.omg.CosLoadBalancing.LoadManager;
import org.omg.CosLoadBalancing.PortableGroup.MemberAlreadyPresent;
import org.omg.CosLoadBalancing.PortableGroup.MemberNotFound;
import org.omg.CosLoadBalancing.PortableGroup.ObjectGroupNotFound;

/** One object of this process in one object group. */
public final class Member implements AutoCloseable {
    private static final System.Logger LOG = System.getLogger(LoadBalancing.class.getName());

    private final Location location;
    private final String[] adapter;
    private final byte[] id;
    /** As text: an ORB may change a reference object for good when a call within the process is shed. */
    private final String reference;

    private volatile org.omg.CORBA.Object group;
    private volatile boolean left;

    Member(Location location, org.omg.CORBA.Object group, org.omg.CORBA.Object reference) {
        Adapters.Place place = Adapters.find(location.balancing().orb(), reference);
        if (place.adapter.the_POAManager().get_state().value() != org.omg.PortableServer.POAManagerPackage.State._ACTIVE) {
            // The manager may ask the member what it is before it adds it.
            throw new IllegalStateException("activate the member's adapter manager before it joins a group");
        }
        this.location = location;
        this.adapter = Adapters.names(place.adapter);
        this.id = place.id;
        this.reference = location.balancing().orb().object_to_string(reference);
        this.group = group;
    }

    /** The group, as the manager knows it. */
    public org.omg.CORBA.Object group() {
        return group;
    }

    /**
     * Leaves the group. Clients that are bound to it are sent back to the group with their next
     * request. If the manager does not answer it is only logged.
     */
    @Override
    public void close() {
        if (left) {
            return;
        }
        left = true;
        try {
            Patience.NONE.with("leave the group", location.balancing(), () -> {
                manager().remove_member(group, location.components());
                return null;
            });
        } catch (MemberNotFound | ObjectGroupNotFound e) {
            // Somebody was faster.
        } catch (UserException | SystemException e) {
            LOG.log(System.Logger.Level.WARNING, location + " could not leave its group: " + e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        location.changed();
    }

    /** Adds it; replaces what a server that crashed has left at the location. */
    void add() throws UserException {
        try {
            group = manager().add_member(group, location.components(), own());
        } catch (MemberAlreadyPresent e) {
            org.omg.CORBA.Object old;
            try {
                old = manager().get_member_ref(group, location.components());
                if (!location.mayReplace(old, own())) {
                    throw e;
                }
                manager().remove_member(group, location.components());
            } catch (MemberNotFound gone) {
                // Then there is room.
            }
            group = manager().add_member(group, location.components(), own());
        }
    }

    /** Adds it again if the manager has forgotten it. */
    void rejoin() throws UserException {
        if (left) {
            return;
        }
        try {
            manager().get_member_ref(group, location.components());
        } catch (MemberNotFound e) {
            LOG.log(System.Logger.Level.INFO, location + " is not in its group any more, it joins again");
            add();
        }
    }

    void addTarget(List<Interceptor.Target> targets, Interceptor.Counters counters, boolean alerted) {
        targets.add(new Interceptor.Target(adapter, id, counters, alerted || left, group));
    }

    private org.omg.CORBA.Object own() {
        return location.balancing().orb().string_to_object(reference);
    }

    private LoadManager manager() {
        return location.balancing().manager();
    }
}
