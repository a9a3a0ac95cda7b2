//! Passwords of users: compared by threads of their own, as that takes long on purpose, and remembered
//! by workers when they were right.
//!
//! The clients' networks have their turns, whatever each of them sends: whoever guesses waits behind its own
//! guesses, and not others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use aws_lc_rs::hmac;
use evenkeel_manager::auth::Users;
use evenkeel_net::network::network_of;
use tokio::sync::oneshot;

/// Threads that compare passwords, of all rules together: however many are guessed, workers have
/// CPUs left.
const THREADS: usize = 2;

/// Most passwords that wait for one, of all clients. With a tenth of a second each that is three
/// seconds.
const QUEUE: usize = 64;

/// Most proofs that a worker remembers.
const MAX_PROOFS: usize = 4096;

/// A password that is to be compared.
struct Job {
    users: Arc<Users>,
    user: Box<str>,
    password: Box<str>,
    answer: oneshot::Sender<bool>,
}

/// Shows nothing of the password.
impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").finish_non_exhaustive()
    }
}

/// Too many passwords wait to be compared.
#[derive(Debug)]
pub(crate) struct Busy;

/// Jobs of clients: each client's in order, and the clients in turn.
#[derive(Debug)]
struct FairQueue<T> {
    /// Jobs of each client that has some.
    clients: HashMap<IpAddr, VecDeque<T>>,
    /// Clients that have jobs, in the order of their turns.
    turns: VecDeque<IpAddr>,
    len: usize,
    most: usize,
}

impl<T> FairQueue<T> {
    fn new(most: usize) -> Self {
        FairQueue {
            clients: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            most,
        }
    }

    /// Adds a job of a client. If there are too many, the newest job of the client with the most of them has to go:
    /// the job that is answered. Between clients with equally many the one that comes last is that.
    fn push(&mut self, client: IpAddr, job: T) -> Option<T> {
        let own = self.clients.get(&client).map_or(0, VecDeque::len);
        let mut displaced = None;
        if self.len >= self.most {
            let jobs_of = |client: &&IpAddr| self.clients.get(client).map_or(0, VecDeque::len);
            let longest = self.turns.iter().max_by_key(jobs_of);
            let longest = longest.and_then(|client| self.clients.get_mut(client));
            // It has more than the client has with this one, and so keeps one at least.
            displaced = longest
                .filter(|jobs| jobs.len() > own + 1)
                .and_then(VecDeque::pop_back);
            if displaced.is_none() {
                return Some(job);
            }
            self.len -= 1;
        }
        if own == 0 {
            self.turns.push_back(client);
        }
        self.clients.entry(client).or_default().push_back(job);
        self.len += 1;
        displaced
    }

    /// The next job.
    fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let jobs = self.clients.get_mut(&client)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.clients.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.len -= usize::from(job.is_some());
        job
    }
}

/// The queue of the threads that compare.
#[derive(Debug)]
struct Waiting {
    jobs: Mutex<FairQueue<Job>>,
    /// Notice of each new job.
    arrived: Condvar,
}

impl Waiting {
    fn lock_jobs(&self) -> MutexGuard<'_, FairQueue<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Job {
        let mut jobs = self.lock_jobs();
        loop {
            if let Some(job) = jobs.pop() {
                return job;
            }
            let waited = self.arrived.wait(jobs);
            jobs = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Has a password of a client compared. If there is no answer then, others have taken its place.
///
/// # Errors
///
/// There is no room, or no thread.
pub(crate) fn compare_password(
    client: IpAddr,
    users: &Arc<Users>,
    user: &str,
    password: &str,
) -> Result<oneshot::Receiver<bool>, Busy> {
    static QUEUE_OF_PROCESS: OnceLock<Option<Arc<Waiting>>> = OnceLock::new();
    let queue = QUEUE_OF_PROCESS.get_or_init(|| match start() {
        Ok(queue) => Some(queue),
        Err(error) => {
            tracing::error!(
                "cannot start the thread that compares passwords, so nobody can log in: {error}"
            );
            None
        }
    });
    let (answer, answered) = oneshot::channel();
    let job = Job {
        users: Arc::clone(users),
        user: user.into(),
        password: password.into(),
        answer,
    };
    let queue = queue.as_ref().ok_or(Busy)?;
    // Whoever has asked for a job that has to go sees that there will be no answer.
    drop(queue.lock_jobs().push(network_of(client), job));
    queue.arrived.notify_one();
    Ok(answered)
}

fn start() -> std::io::Result<Arc<Waiting>> {
    let waiting = Arc::new(Waiting {
        jobs: Mutex::new(FairQueue::new(QUEUE)),
        arrived: Condvar::new(),
    });
    for _ in 0..THREADS {
        let waiting = Arc::clone(&waiting);
        std::thread::Builder::new()
            .name("passwords".into())
            .spawn(move || run_jobs(&waiting))?;
    }
    Ok(waiting)
}

fn run_jobs(waiting: &Waiting) {
    loop {
        let job = waiting.next();
        // Whoever has asked may have gone.
        if !job.answer.is_closed() {
            let _ = job
                .answer
                .send(job.users.check_password(&job.user, &job.password));
        }
    }
}

/// Proof that a password was right: a code of the password, and of the user who has it.
pub(crate) type Proof = [u8; 32];

/// The proofs that a worker has seen. Nothing in them tells a password.
#[derive(Debug)]
pub(crate) struct Proofs {
    key: OnceLock<hmac::Key>,
    known: HashSet<Proof>,
    /// Known proofs, the oldest first.
    order: VecDeque<Proof>,
}

impl Proofs {
    pub(crate) fn new() -> Self {
        Proofs {
            key: OnceLock::new(),
            known: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Returns the proof that `user` of `users` has this password.
    pub(crate) fn new_proof(&self, users: &Users, user: &str, password: &str) -> Proof {
        let key = self.key.get_or_init(|| {
            let mut secret = [0; 32];
            let filled = aws_lc_rs::rand::fill(&mut secret);
            assert!(filled.is_ok(), "the system has no random numbers");
            hmac::Key::new(hmac::HMAC_SHA256, &secret)
        });
        let mut context = hmac::Context::with_key(key);
        context.update(&users.id().to_be_bytes());
        context.update(&(user.len() as u64).to_be_bytes());
        context.update(user.as_bytes());
        context.update(password.as_bytes());
        let mut proof = [0; 32];
        proof.copy_from_slice(context.sign().as_ref());
        proof
    }

    pub(crate) fn has_proof(&self, proof: &Proof) -> bool {
        self.known.contains(proof)
    }

    /// Remembers a proof; the oldest is forgotten if there are too many.
    pub(crate) fn add_proof(&mut self, proof: Proof) {
        if !self.known.insert(proof) {
            return;
        }
        self.order.push_back(proof);
        if self.order.len() > MAX_PROOFS
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n16_one_client_waits_behind_itself_and_not_others() {
        let mut queue = FairQueue::new(6);
        let [bad, good, late] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        for number in 0..6 {
            assert_eq!(queue.push(bad, number), None);
        }
        assert_eq!(queue.push(bad, 6), Some(6), "its own has to go");
        // Others find room, and what comes last of the client with the most goes.
        assert_eq!(queue.push(good, 10), Some(5));
        assert_eq!(queue.push(good, 11), Some(4));
        assert_eq!(queue.push(late, 20), Some(3));
        assert_eq!(queue.push(good, 12), Some(12), "it would have the most");
        assert_eq!(queue.push(late, 21), Some(2));
        assert_eq!(queue.push(IpAddr::from([192, 0, 2, 4]), 30), Some(21));
        assert_eq!((queue.len, queue.clients.len()), (6, 4));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 10, 20, 30, 1, 11]);
        assert!(queue.len == 0 && queue.clients.is_empty() && queue.turns.is_empty());
        assert_eq!(queue.push(bad, 7), None);
        assert_eq!((queue.pop(), queue.pop()), (Some(7), None));
    }

    #[test]
    fn n16_as_many_clients_as_there_are_places_keep_them() {
        let mut queue = FairQueue::new(3);
        let clients = [1, 2, 3, 4].map(|last| IpAddr::from([192, 0, 2, last]));
        let pushed = clients.map(|client| queue.push(client, client));
        assert_eq!(pushed, [None, None, None, Some(clients[3])]);
    }

    #[test]
    fn proofs_are_of_one_user_and_password_and_the_oldest_are_forgotten() {
        let (mut proofs, users) = (Proofs::new(), Users::default());
        let anna = proofs.new_proof(&users, "anna", "secret");
        for (user, password) in [("anna", "Secret"), ("ann", "asecret"), ("annas", "ecret")] {
            assert_ne!(proofs.new_proof(&users, user, password), anna);
        }
        assert_ne!(Proofs::new().new_proof(&users, "anna", "secret"), anna);
        assert!(!proofs.has_proof(&anna));
        for _ in 0..2 {
            proofs.add_proof(anna);
            assert!(proofs.has_proof(&anna));
        }
        assert_eq!(proofs.order.len(), 1);
        for number in 0..MAX_PROOFS {
            let proof = proofs.new_proof(&users, "bert", &number.to_string());
            proofs.add_proof(proof);
        }
        assert!(!proofs.has_proof(&anna));
        assert_eq!(
            (proofs.known.len(), proofs.order.len()),
            (MAX_PROOFS, MAX_PROOFS)
        );
    }
}
