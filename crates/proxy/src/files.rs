//! Number of connections that the rules may have, over all workers: each is an open file of the
//! process, and other parts need files, too (see [`evenkeel_limits::files`]).
//!
//! Clients get at most half of the connections, so that there is one connection to a member for
//! each client. Hence, when all are taken, some of the connections to members are idle; these are
//! closed first. Pipes take the files that no client needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_limits::files::Shares;
use tokio::sync::Notify;

/// Counts the files of all workers. Nothing here happens per request, only when a
/// connection is opened or closed.
#[derive(Debug)]
pub(crate) struct Files {
    most: AtomicUsize,
    most_connections: AtomicUsize,
    most_clients: AtomicUsize,
    most_pipes: AtomicUsize,
    /// Files of connections and pipes.
    open: AtomicUsize,
    connections: AtomicUsize,
    clients: AtomicUsize,
    /// Promised files: two for each client, its own and one to a member, and two for each pipe.
    promised: AtomicUsize,
    /// Files of pipes: two each.
    pipes: AtomicUsize,
    /// Number of tasks that wait for a connection to be closed.
    waiting: AtomicUsize,
    /// Number of waiting tasks for which idle connections to members have left no room.
    short: AtomicUsize,
    closed: Notify,
}

/// The right to a connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionFile(Arc<Files>);

/// The right to a client's connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct ClientFile(ConnectionFile);

/// The right to a pipe, until it is dropped.
#[derive(Debug)]
pub(crate) struct PipeFiles(Arc<Files>);

impl Files {
    pub(crate) fn new(shares: Shares) -> Arc<Self> {
        let files = Files {
            most: AtomicUsize::new(0),
            most_connections: AtomicUsize::new(0),
            most_clients: AtomicUsize::new(0),
            most_pipes: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            pipes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            short: AtomicUsize::new(0),
            closed: Notify::new(),
        };
        files.set_shares(shares);
        Arc::new(files)
    }

    /// Other shares count from now on. Connections that are there stay.
    pub(crate) fn set_shares(&self, shares: Shares) {
        let set = |most: &AtomicUsize, to: usize| most.store(to, Ordering::Relaxed);
        set(&self.most, shares.rules);
        set(&self.most_connections, shares.connections);
        set(&self.most_clients, shares.client_limit());
        set(&self.most_pipes, shares.pipes);
        self.closed.notify_waiters();
    }

    /// A connection, unless all are taken.
    pub(crate) fn take_connection(self: &Arc<Self>) -> Option<ConnectionFile> {
        let counts = [
            (&self.connections, &self.most_connections),
            (&self.open, &self.most),
        ];
        take_all(&counts, 1).then(|| ConnectionFile(Arc::clone(self)))
    }

    /// A client's connection, unless all of these are taken (`Err(Taken::Clients)`) or all
    /// connections are.
    pub(crate) fn take_client(self: &Arc<Self>) -> Result<ClientFile, WaitReason> {
        if !take(&self.clients, &self.most_clients, 1) {
            return Err(WaitReason::Clients);
        }
        // What is taken and given back would wake whoever asks for it here.
        if take(&self.promised, &self.most, 2) {
            if let Some(connection) = self.take_connection() {
                return Ok(ClientFile(connection));
            }
            self.promised.fetch_sub(2, Ordering::SeqCst);
        }
        self.clients.fetch_sub(1, Ordering::SeqCst);
        Err(WaitReason::Connections)
    }

    /// A pipe, unless all are taken, or clients need its files.
    pub(crate) fn take_pipe(self: &Arc<Self>) -> Option<PipeFiles> {
        let counts = [
            (&self.pipes, &self.most_pipes),
            (&self.promised, &self.most),
            (&self.open, &self.most),
        ];
        take_all(&counts, 2).then(|| PipeFiles(Arc::clone(self)))
    }

    /// Waits until a connection has been closed since the answer was made: ask for one
    /// between the two. Workers close idle connections meanwhile if these are `taken`.
    pub(crate) fn wait_for_close(&self, taken: WaitReason) -> impl Future<Output = ()> {
        let waiting = Count::new(&self.waiting);
        let short = (taken == WaitReason::Connections).then(|| Count::new(&self.short));
        let mut notified = Box::pin(self.closed.notified());
        notified.as_mut().enable();
        async move {
            let _counted = (waiting, short);
            notified.await;
        }
    }

    /// True if a task waits for an idle connection to be closed.
    pub(crate) fn are_short(&self) -> bool {
        self.short.load(Ordering::Relaxed) > 0
    }

    /// Most clients at a time, and how many there are.
    pub(crate) fn client_counts(&self) -> (usize, usize) {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (of(&self.most_clients), of(&self.clients))
    }

    fn gave_back(&self) {
        // Pairs with the order in `closed`: whoever counts as waiting looks again before it
        // waits, and whoever is not seen here sees what was given back.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.closed.notify_waiters();
        }
    }
}

/// Reason why a client has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// There are as many clients as there may be.
    Clients,
    /// Idle connections to members, or pipes, have taken what is left.
    Connections,
}

pub(crate) fn take(count: &AtomicUsize, most: &AtomicUsize, number: usize) -> bool {
    let most = most.load(Ordering::Relaxed);
    let fits = |count: usize| Some(count + number).filter(|&sum| sum <= most);
    count
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits)
        .is_ok()
}

/// Takes from all of the counts, or from none.
fn take_all(counts: &[(&AtomicUsize, &AtomicUsize)], number: usize) -> bool {
    let taken = counts
        .iter()
        .take_while(|(count, most)| take(count, most, number))
        .count();
    if taken < counts.len() {
        for (count, _) in &counts[..taken] {
            count.fetch_sub(number, Ordering::SeqCst);
        }
    }
    taken == counts.len()
}

struct Count<'a>(&'a AtomicUsize);

impl<'a> Count<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Count(count)
    }
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for ConnectionFile {
    fn drop(&mut self) {
        for count in [&self.0.connections, &self.0.open] {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        self.0.gave_back();
    }
}

impl Drop for ClientFile {
    fn drop(&mut self) {
        // Before its connection: whoever is woken for that must see room for a client.
        self.0.0.clients.fetch_sub(1, Ordering::SeqCst);
        self.0.0.promised.fetch_sub(2, Ordering::SeqCst);
    }
}

impl Drop for PipeFiles {
    fn drop(&mut self) {
        for count in [&self.0.pipes, &self.0.promised, &self.0.open] {
            count.fetch_sub(2, Ordering::SeqCst);
        }
        self.0.gave_back();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use evenkeel_limits::files::Users;

    use super::*;

    fn files() -> (Arc<Files>, Shares) {
        let shares = Shares::new(
            256,
            Users {
                workers: 1,
                ..Users::default()
            },
        );
        (Files::new(shares), shares)
    }

    #[test]
    fn s5_each_client_finds_a_connection_to_a_member() {
        let (files, shares) = files();
        let mut clients = Vec::new();
        let taken = loop {
            match files.take_client() {
                Ok(client) => clients.push(client),
                Err(taken) => break taken,
            }
        };
        assert_eq!(
            (clients.len(), taken),
            (shares.client_limit(), WaitReason::Clients)
        );
        let members: Vec<_> = clients
            .iter()
            .map_while(|_| files.take_connection())
            .collect();
        assert_eq!(members.len(), clients.len());
        drop(members);
        drop(clients);
        assert_eq!(files.client_counts().1, 0);
        assert_eq!(files.connections.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn s5_pipes_take_what_no_client_needs() {
        let (files, shares) = files();
        let pipes: Vec<_> = std::iter::from_fn(|| files.take_pipe()).collect();
        assert_eq!(pipes.len(), shares.pipes / 2);
        // Each client still finds a connection to a member.
        let clients: Vec<_> = std::iter::from_fn(|| files.take_client().ok()).collect();
        assert_eq!(clients.len(), shares.client_limit() - pipes.len());
        assert_eq!(files.take_client().unwrap_err(), WaitReason::Connections);
        let members: Vec<_> = clients
            .iter()
            .map_while(|_| files.take_connection())
            .collect();
        assert_eq!(members.len(), clients.len());
        drop((pipes, members));
        let more: Vec<_> = std::iter::from_fn(|| files.take_client().ok()).collect();
        assert_eq!(clients.len() + more.len(), shares.client_limit());
        assert!(files.take_pipe().is_none());
        drop((clients, more));
        for count in [&files.promised, &files.open, &files.pipes] {
            assert_eq!(count.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn s5_pipes_take_no_client_where_memory_is_the_limit() {
        let (_, shares) = files();
        let files = Files::new(Shares {
            connections: 40,
            ..shares
        });
        let pipes: Vec<_> = std::iter::from_fn(|| files.take_pipe()).collect();
        assert!(!pipes.is_empty());
        let clients: Vec<_> = std::iter::from_fn(|| files.take_client().ok()).collect();
        assert_eq!(clients.len(), 20);
        assert_eq!(files.take_client().unwrap_err(), WaitReason::Clients);
    }

    #[test]
    fn s5_no_pipe_takes_the_last_connection() {
        let (files, shares) = files();
        let connections: Vec<_> = std::iter::from_fn(|| files.take_connection()).collect();
        assert_eq!(connections.len(), shares.connections);
        assert!(files.take_pipe().is_none());
        assert_eq!(files.promised.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn s5_who_asks_in_vain_wakes_nobody() {
        let (files, _) = files();
        let clients: Vec<_> = std::iter::from_fn(|| files.take_client().ok()).collect();
        let closed = files.wait_for_close(WaitReason::Clients);
        tokio::pin!(closed);
        assert_eq!(files.take_client().unwrap_err(), WaitReason::Clients);
        let now = std::future::poll_fn(|cx| Poll::Ready(closed.as_mut().poll(cx).is_ready()));
        assert!(!now.await, "who waits would run in circles");
        drop(clients);
        closed.await;
    }

    #[tokio::test]
    async fn s5_who_waits_is_told() {
        let (files, _) = files();
        let mut all: Vec<_> = std::iter::from_fn(|| files.take_connection()).collect();
        assert_eq!(files.take_client().unwrap_err(), WaitReason::Connections);
        assert!(!files.are_short());
        let closed = files.wait_for_close(WaitReason::Connections);
        assert!(files.are_short());
        all.pop();
        closed.await;
        assert!(!files.are_short());
        let closed = files.wait_for_close(WaitReason::Clients);
        assert!(
            !files.are_short(),
            "closing what is idle would make no room"
        );
        let client = files.take_client().unwrap();
        drop(client);
        closed.await;
    }
}
