//! Several balancers that are one load manager: who of them serves, and how another one takes over.
//!
//! The balancer that serves is the owner. Its key in the store is under a lease that it renews, and
//! all that it writes compares that key. A thread of its own follows the key, renews the lease,
//! and switches the service on and off.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use evenkeel_config::Store as Settings;
use evenkeel_net::{Clock, listen, start_thread};
use evenkeel_store::etcd::{Etcd, EtcdError, Keys, WatchEvent, Write};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep, timeout};
use tracing::{error, info, warn};

use super::corba::{Corba, Inner};
use super::lease::{AGAIN, Lease};
use super::standby::{Order, Standby, Taken, Ticket, View, lock};
use crate::service::replica::{Replica, StateKeys, StoredGroupState, read_state};
use crate::service::state::State;
use crate::service::store;
use crate::tenure::{LIFETIME, ServingRight, due_after, end_after};

/// Longest time for an answer of the store: another server of it is to be asked in time, after a
/// connection that was there already and a new one to the first server.
const ANSWER: Duration = Duration::from_millis(1500);

/// Time between two looks at the owner's key, beside the watch: watches can be lost.
const POLL: Duration = Duration::from_secs(2);

/// Pause after a failure, and time between two looks at the own addresses.
const PAUSE: Duration = Duration::from_secs(1);

/// Time in which another balancer may take over where this one cannot serve.
const STEP_BACK: Duration = Duration::from_secs(5);

/// Least time between two lines of log about a problem that lasts.
const BETWEEN_LINES: Duration = Duration::from_secs(60);

/// Value of the owner's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// Name of the balancer, for people.
    name: String,
    /// Text that tells this process, and the one that takes its place, from all others.
    instance: String,
    lease: i64,
}

impl Standby {
    /// Starts the thread for the balancer called `name`, which takes the place of the process with
    /// this ticket. With a right to serve it is the owner already; otherwise it waits for
    /// [`Standby::serve_if_free`].
    pub(super) fn start(
        corba: Weak<Inner>,
        clock: Clock,
        (settings, name): (&Settings, String),
        ticket: Option<Ticket>,
        tenure: Option<Arc<ServingRight>>,
    ) -> std::io::Result<Self> {
        let settings = Settings {
            timeout: settings.timeout.min(ANSWER),
            ..settings.clone()
        };
        let random = || format!("{:016x}", fastrand::u64(..));
        let instance = ticket.as_ref().map(|ticket| ticket.instance.clone());
        let view = Arc::new(Mutex::new(View {
            is_owner: tenure.is_some(),
            owner: tenure.is_some().then(|| name.clone()),
            since: Instant::now(),
            takeovers: 0,
            problem: None,
        }));
        let mut keeper = Keeper {
            corba,
            clock,
            keys: StateKeys::new(&settings.prefix),
            etcd: Etcd::new(&settings),
            settings,
            name,
            instance: instance.unwrap_or_else(random),
            lease: ticket.as_ref().map(|ticket| ticket.lease),
            view: Arc::clone(&view),
            told: None,
            failed: None,
        };
        let held = ticket.zip(tenure).map(|(ticket, tenure)| OwnerKey {
            lease: ticket.lease,
            revision: ticket.revision,
            tenure,
            renew_at: clock.now(),
            serves: true,
        });
        let (orders, received) = mpsc::unbounded_channel();
        let handle = start_thread("corba-standby", move |runtime| {
            runtime.block_on(keeper.run(received, held));
        })?;
        Ok(Standby {
            orders,
            view,
            handle,
        })
    }
}

/// The key of the owner, as this balancer holds it.
struct OwnerKey {
    lease: i64,
    /// Revision of the store in which the key was written.
    revision: i64,
    tenure: Arc<ServingRight>,
    renew_at: evenkeel_core::time::Instant,
    /// The service is on already.
    serves: bool,
}

/// Result of claiming the owner's key.
enum Claim {
    /// The balancer holds the key.
    Held(OwnerKey),
    /// Another one does, or it is to be looked again at once.
    Not,
}

/// Reason why this balancer has stopped serving.
enum Outcome {
    /// The balancer has lost the right to serve, or cannot serve.
    Over,
    /// An order arrived; `None` means to end.
    Told(Option<Order>),
}

/// Waits for `work` while a lease is renewed; `is_over` becomes true when the renewal ends.
async fn while_renewed<T>(
    work: impl Future<Output = T>,
    mut renewing: Pin<&mut impl Future<Output = ()>>,
    is_over: &mut bool,
) -> T {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            () = &mut renewing, if !*is_over => *is_over = true,
        }
    }
}

struct Keeper {
    corba: Weak<Inner>,
    clock: Clock,
    keys: StateKeys,
    etcd: Etcd,
    settings: Settings,
    name: String,
    instance: String,
    /// The last lease, until it is known to have ended.
    lease: Option<i64>,
    view: Arc<Mutex<View>>,
    /// Time of the last line of log about a problem that lasts.
    told: Option<Instant>,
    /// Time of the last line of log about this balancer being unable to serve.
    failed: Option<Instant>,
}

impl Keeper {
    async fn run(
        &mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        mut held: Option<OwnerKey>,
    ) {
        let mut follows = held.is_some();
        loop {
            let order = match (follows, held.take()) {
                (false, _) => orders.recv().await,
                (true, Some(held)) => match self.serve(held, &mut orders).await {
                    Outcome::Over => continue,
                    Outcome::Told(order) => order,
                },
                (true, None) => tokio::select! {
                    biased;
                    order = orders.recv() => order,
                    won = self.claim() => {
                        held = Some(won);
                        continue;
                    }
                },
            };
            follows = false;
            match order {
                Some(Order::Follow) => follows = true,
                Some(Order::Rest) => {
                    self.withdraw().await;
                    self.end_lease().await;
                }
                // This balancer was not the owner, or has answered already.
                Some(Order::HandOver(answer)) => {
                    self.end_lease().await;
                    let _ = answer.send(None);
                }
                Some(Order::End) | None => return self.end_lease().await,
            }
        }
    }

    /// Waits until this balancer is the owner.
    async fn claim(&mut self) -> OwnerKey {
        loop {
            let (claimed, pause) = match self.try_claim().await {
                Ok(Claim::Held(held)) => return held,
                Ok(Claim::Not) => (Ok(()), Duration::ZERO),
                Err(why) => (Err(why), PAUSE),
            };
            // What it served before it handed that over, or lost it.
            self.withdraw().await;
            self.note(claimed.err());
            sleep(pause).await;
        }
    }

    async fn try_claim(&mut self) -> Result<Claim, String> {
        let key = self.keys.owner_key();
        let read = self.etcd.read(Keys::One(&key)).await;
        let read = read.map_err(|error| self.waits(&error))?;
        let Some(entry) = read.entries.first() else {
            self.see_owner(None);
            self.can_listen()?;
            let lease = self.etcd.lease(LIFETIME).await;
            let lease = lease.map_err(|error| self.waits(&error))?;
            self.lease = Some(lease);
            let owner = Owner {
                name: self.name.clone(),
                instance: self.instance.clone(),
                lease,
            };
            let value = serde_json::to_vec(&owner).map_err(|error| error.to_string())?;
            let write = vec![Write::Put(key.clone(), value, lease)];
            let written = self.etcd.write_if((&key, 0), write).await;
            // Who has it is read next, whatever the answer says.
            return match written {
                Ok(_) => Ok(Claim::Not),
                Err(error) => Err(self.waits(&error)),
            };
        };
        let owner: Owner = serde_json::from_slice(&entry.value).map_err(|error| {
            format!(
                "{key} in the store is damaged, so nobody serves: {error}; remove it with \
                 etcdctl del {key}"
            )
        })?;
        if owner.instance == self.instance {
            let sent = self.clock.now();
            let kept = self.etcd.keep_alive(owner.lease).await;
            if kept.map_err(|error| self.waits(&error))? {
                self.lease = Some(owner.lease);
                return Ok(Claim::Held(OwnerKey {
                    lease: owner.lease,
                    revision: entry.changed,
                    tenure: ServingRight::new(end_after(sent)),
                    renew_at: due_after(sent),
                    serves: false,
                }));
            }
            // It has just run out; the key goes with it.
            sleep(AGAIN).await;
            return Ok(Claim::Not);
        }
        self.see_owner(Some(owner.name));
        // One that was not the first has a lease of no use.
        self.end_lease().await;
        self.note(None);
        let watch = self.etcd.watch(&key, read.revision.saturating_add(1)).await;
        let mut watch = watch.map_err(|error| self.waits(&error))?;
        let news = async {
            loop {
                match watch.next().await {
                    Ok(WatchEvent::Changed(_)) => return,
                    Ok(WatchEvent::Begun | WatchEvent::Nothing) => {}
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        let _ = timeout(POLL, news).await;
        Ok(Claim::Not)
    }

    /// Serves until something ends that.
    async fn serve(
        &mut self,
        mut held: OwnerKey,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Outcome {
        let tenure = Arc::clone(&held.tenure);
        let lease = Lease {
            etcd: Etcd::new(&self.settings),
            key: self.keys.owner_key(),
            id: held.lease,
            revision: held.revision,
            tenure: Arc::clone(&tenure),
            clock: self.clock,
            view: Arc::clone(&self.view),
        };
        let mut renewing = pin!(lease.renew(held.renew_at));
        let mut is_over = false;
        if !held.serves {
            let begun = self.take_over(&held);
            let begun = while_renewed(begun, renewing.as_mut(), &mut is_over).await;
            held.serves = begun.is_ok();
            if let Err(why) = begun {
                return self.step_back(&tenure, why, orders).await;
            }
            self.serves();
        }
        let mut looks = interval(PAUSE);
        let told = loop {
            if is_over {
                break Err(tenure.wait_for_end().await.to_string());
            }
            tokio::select! {
                () = &mut renewing => is_over = true,
                why = tenure.wait_for_end() => break Err(why.to_string()),
                order = orders.recv() => match order {
                    Some(Order::Follow) => {}
                    order => break Ok(Some(order)),
                },
                _ = looks.tick() => if let Err(why) = self.has_addresses() {
                    self.note(Some(why));
                    break Ok(None);
                },
            }
        };
        match told {
            Err(why) => {
                warn!(
                    "CORBA: this balancer is not the load manager any more, and stands by: {why}"
                );
                self.stands_by();
                lock(&self.view).problem = Some(why);
                self.switch_off(true).await;
                Outcome::Over
            }
            Ok(order) => {
                let hands_over = matches!(order, Some(Some(Order::HandOver(_))));
                // The last answers are given while the right holds.
                let ended = self.switch_off(!hands_over);
                while_renewed(ended, renewing.as_mut(), &mut is_over).await;
                self.stands_by();
                let Some(order) = order else {
                    self.end_lease().await;
                    return Outcome::Over;
                };
                if let Some(Order::HandOver(answer)) = order {
                    let ticket = self.ticket_of(&held);
                    // The other process ends it. It may take long to begin: the lease is renewed
                    // here until then.
                    self.lease = None;
                    let _ = answer.send(Some(ticket));
                    let order = while_renewed(orders.recv(), renewing.as_mut(), &mut is_over);
                    return Outcome::Told(order.await);
                }
                Outcome::Told(order)
            }
        }
    }

    /// Leaves the right to serve to another balancer, since this one cannot serve, and waits for a while.
    async fn step_back(
        &mut self,
        tenure: &ServingRight,
        why: String,
        orders: &mut mpsc::UnboundedReceiver<Order>,
    ) -> Outcome {
        tenure.end_now(&why);
        self.switch_off(true).await;
        self.end_lease().await;
        self.note_failure(why);
        match timeout(STEP_BACK, orders.recv()).await {
            Ok(order) => Outcome::Told(order),
            Err(_) => Outcome::Over,
        }
    }

    /// Returns the ticket for the process that takes the place of this one.
    fn ticket_of(&self, held: &OwnerKey) -> Ticket {
        Ticket {
            instance: self.instance.clone(),
            lease: held.lease,
            revision: held.revision,
            until: held.tenure.valid_until().as_nanos(),
            has_state: false,
        }
    }

    /// Reads the state, and switches the service on with it.
    async fn take_over(&mut self, held: &OwnerKey) -> Result<(), String> {
        let found = loop {
            match read_state(&mut self.etcd, &self.keys).await {
                Ok(found) => break found,
                Err(why) if !held.tenure.holds_at(self.clock.now()) => return Err(why),
                Err(_) => sleep(AGAIN).await,
            }
        };
        let corba = self.corba.upgrade().ok_or("the process ends")?;
        let file = corba.prepared().state_file();
        let local = match file.clone() {
            None => None,
            Some(path) => spawn_blocking(move || path.exists().then(|| store::load_state(&path)))
                .await
                .map_err(|panic| panic.to_string())?,
        };
        for problem in &found.damaged {
            error!(
                "CORBA: a key in the store is damaged, and is left out: {problem}; mend it with \
                 etcdctl, or remove it"
            );
        }
        let file = file.unwrap_or_default();
        let (state, is_new) = choose_state(found, local, &file)?;
        let state = Arc::new(state);
        let written = match is_new {
            true => Arc::default(),
            false => Arc::clone(&state),
        };
        let mut replica = Replica::new(
            Etcd::new(&self.settings),
            self.keys.clone(),
            held.revision,
            Arc::clone(&held.tenure),
            written,
        );
        if is_new {
            replica.write_whole(Arc::clone(&state)).await?;
        }
        let replica = Box::new(replica);
        corba.switch_on(Taken { state, replica }).await
    }

    /// Switches the service off. `withdraws` is: its groups are not this balancer's any more.
    async fn switch_off(&self, withdraws: bool) {
        let Some(corba) = self.corba.upgrade() else {
            return;
        };
        let off = spawn_blocking(move || {
            corba.switch_off(withdraws);
            if withdraws {
                corba.withdraw();
            }
        });
        if let Err(panic) = off.await {
            error!("CORBA: the service cannot be switched off: {panic}");
        }
    }

    /// Takes back what is left of the time as the owner.
    async fn withdraw(&self) {
        let Some(corba) = self.corba.upgrade() else {
            return;
        };
        if corba.service.load().is_some() {
            let _ = spawn_blocking(move || corba.withdraw()).await;
        }
    }

    /// Ends the lease, if there is one: another balancer need not wait for its end.
    async fn end_lease(&mut self) {
        if let Some(lease) = self.lease.take() {
            // Otherwise it ends by itself.
            let _ = self.etcd.end_lease(lease).await;
        }
    }

    /// Makes sure that this balancer could serve.
    fn can_listen(&self) -> Result<(), String> {
        self.has_addresses()?;
        for address in self.addresses() {
            listen::check_free(address).map_err(|error| {
                let why = listen::explain_error(&error);
                format!("corba.listen: cannot listen on {address}: {why}")
            })?;
        }
        Ok(())
    }

    fn has_addresses(&self) -> Result<(), String> {
        check_addresses(&self.addresses())
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        let corba = self.corba.upgrade();
        corba.map_or_else(Vec::new, |corba| corba.prepared().addresses())
    }

    fn waits(&self, error: &EtcdError) -> String {
        format!("the store cannot be asked who serves: {error}")
    }

    fn see_owner(&self, owner: Option<String>) {
        lock(&self.view).owner = owner;
    }

    fn serves(&mut self) {
        {
            let mut view = lock(&self.view);
            view.is_owner = true;
            view.owner = Some(self.name.clone());
            view.since = Instant::now();
            view.takeovers += 1;
        }
        self.note(None);
        info!("CORBA: this balancer is the load manager now");
    }

    fn stands_by(&self) {
        let mut view = lock(&self.view);
        view.is_owner = false;
        view.owner = None;
        view.since = Instant::now();
    }

    /// Keeps a problem that comes again with each try to serve.
    fn note_failure(&mut self, why: String) {
        if self.failed.is_none_or(|at| at.elapsed() >= BETWEEN_LINES) {
            error!(
                "CORBA: this balancer cannot be the load manager, and leaves it to others: {why}"
            );
            self.failed = Some(Instant::now());
        }
        lock(&self.view).problem = Some(why);
    }

    /// Keeps a problem for the status, and tells it in the log, once a minute at most.
    fn note(&mut self, problem: Option<String>) {
        let is_told = |at: Instant| at.elapsed() < BETWEEN_LINES;
        match &problem {
            None => self.told = None,
            Some(_) if self.told.is_some_and(is_told) => {}
            Some(why) => {
                warn!("CORBA: this balancer stands by: {why}");
                self.told = Some(Instant::now());
            }
        }
        lock(&self.view).problem = problem;
    }
}

/// Makes sure that the machine has the addresses that clients connect to: an address that several
/// balancers share wanders from one to the other.
fn check_addresses(addresses: &[SocketAddr]) -> Result<(), String> {
    for address in addresses {
        UdpSocket::bind((address.ip(), 0)).map_err(|error| {
            format!(
                "corba.listen: {} is not an address of this machine, so this balancer does not \
                 serve: {error}",
                address.ip()
            )
        })?;
    }
    Ok(())
}

/// The state to serve: what the store has counts, and then the state file. Answers whether the
/// store is to get it yet.
fn choose_state(
    found: StoredGroupState,
    local: Option<Result<State, store::StoreError>>,
    file: &Path,
) -> Result<(State, bool), String> {
    let file = file.display();
    match (found.state, local) {
        (Some(state), Some(Ok(local))) => {
            if state != local {
                warn!(
                    store = state.groups.len(),
                    file = local.groups.len(),
                    "CORBA: the object groups in the store differ from those in {file}: the groups of \
                     the store are used, and the file is rewritten"
                );
            }
            Ok((state, false))
        }
        (Some(state), Some(Err(error))) => {
            warn!(
                "CORBA: the object groups of the store are used, and the state file is rewritten: {error}"
            );
            Ok((state, false))
        }
        (Some(state), None) => Ok((state, false)),
        (None, Some(Ok(local))) => {
            info!(
                groups = local.groups.len(),
                "CORBA: the store has no object groups yet: those in {file} are copied to the store"
            );
            Ok((local, true))
        }
        (None, Some(Err(error))) => Err(error.to_string()),
        (None, None) => Ok((store::fresh_state(), true)),
    }
}

impl Inner {
    /// Serves with a state that this balancer has the right to.
    async fn switch_on(self: &Arc<Self>, taken: Taken) -> Result<(), String> {
        let corba = Corba {
            inner: Arc::clone(self),
        };
        let manager = {
            let mut prepared = self.prepared();
            prepared.taken = Some(taken);
            prepared.is_owner = true;
            prepared.manager.upgrade()
        };
        let manager = manager.ok_or("the process ends")?;
        let (ready, is_ready) = oneshot::channel();
        let (served, same) = (corba.clone(), Arc::clone(&manager));
        // The manager's lock may be held for a while.
        let prepared = spawn_blocking(move || {
            let prepared = same.with_snapshot(|snapshot| served.follow_snapshot(snapshot));
            let _ = ready.send(prepared);
        });
        prepared.await.map_err(|panic| panic.to_string())?;
        match is_ready.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the process ends".into()),
        }
        let begun = corba.begin(manager).await;
        begun.map_err(|error| error.to_string())
    }

    /// Ends the service's thread. Clients are told that their connections end.
    fn switch_off(self: &Arc<Self>, closes: bool) {
        let thread = {
            let mut prepared = self.prepared();
            prepared.is_owner = false;
            prepared.taken = None;
            prepared.settings = None;
            prepared.fixed = None;
            if closes {
                prepared.listeners.clear();
            }
            prepared.thread.take()
        };
        let corba = Corba {
            inner: Arc::clone(self),
        };
        corba.end(thread);
        self.server.store(None);
    }

    /// Takes the groups of a service that has ended away, and closes its sockets.
    fn withdraw(&self) {
        {
            let mut prepared = self.prepared();
            if prepared.is_owner {
                return;
            }
            prepared.listeners.clear();
        }
        let Some(service) = self.service.swap(None) else {
            return;
        };
        if let Err(error) = service.close() {
            error!("CORBA: the object groups of the ended service cannot be removed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(next_group: u64) -> State {
        State {
            next_group,
            ..State::default()
        }
    }

    fn found(next_group: u64) -> StoredGroupState {
        StoredGroupState {
            state: Some(state(next_group)),
            damaged: Vec::new(),
        }
    }

    fn damaged() -> store::StoreError {
        store::StoreError::Damaged {
            path: "state.json".into(),
            reason: "x".into(),
        }
    }

    #[test]
    fn an_address_that_another_machine_has_is_noticed() {
        let check = |address: &str| check_addresses(&[address.parse().unwrap()]);
        for own in ["127.0.0.1:2809", "127.8.9.10:2809", "0.0.0.0:2809"] {
            check(own).unwrap();
        }
        let elsewhere = check("192.0.2.1:2809").unwrap_err();
        assert!(
            elsewhere.contains("192.0.2.1 is not an address"),
            "{elsewhere}"
        );
    }

    #[test]
    fn what_the_store_has_counts_and_a_file_only_where_that_is_empty() {
        let file = Path::new("state.json");
        let choose = |found, local| choose_state(found, local, file);
        for local in [None, Some(Ok(state(9))), Some(Err(damaged()))] {
            assert_eq!(choose(found(2), local), Ok((state(2), false)));
        }
        let none = StoredGroupState::default;
        assert_eq!(choose(none(), Some(Ok(state(9)))), Ok((state(9), true)));
        let fresh = choose(none(), None).unwrap();
        assert!(fresh.1 && fresh.0.next_group > 1_700_000_000);
        // Nothing is lost where there is a file that nobody could read.
        let refused = choose(none(), Some(Err(damaged()))).unwrap_err();
        assert!(refused.contains("state.json is damaged"), "{refused}");
    }
}
