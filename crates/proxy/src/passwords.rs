//! Passwords of users: compared by threads of their own, as that takes long on purpose, and remembered
//! by workers when they were right.

use std::collections::{HashSet, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use aws_lc_rs::hmac;
use evenkeel_manager::auth::Users;
use tokio::sync::oneshot;

/// Threads that compare passwords, of all rules together: however many are guessed, workers have
/// CPUs left.
const THREADS: usize = 2;

/// Most passwords that wait for one. With a tenth of a second each that is three
/// seconds.
const QUEUE: usize = 64;

/// Most proofs that a worker remembers.
const MAX_PROOFS: usize = 4096;

/// What is to be compared.
struct Job {
    users: Arc<Users>,
    user: Box<str>,
    password: Box<str>,
    answer: oneshot::Sender<bool>,
}

/// Too many passwords wait to be compared.
#[derive(Debug)]
pub(crate) struct Busy;

/// Has a password compared.
///
/// # Errors
///
/// There is no room, or no thread.
pub(crate) fn compare(
    users: &Arc<Users>,
    user: &str,
    password: &str,
) -> Result<oneshot::Receiver<bool>, Busy> {
    static QUEUE_OF_PROCESS: OnceLock<Option<SyncSender<Job>>> = OnceLock::new();
    let queue = QUEUE_OF_PROCESS.get_or_init(|| match start() {
        Ok(queue) => Some(queue),
        Err(error) => {
            tracing::error!("no thread for passwords, so that nobody can log in: {error}");
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
    queue.try_send(job).map_err(|_| Busy)?;
    Ok(answered)
}

fn start() -> std::io::Result<SyncSender<Job>> {
    let (sender, jobs) = sync_channel(QUEUE);
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..THREADS {
        let jobs = Arc::clone(&jobs);
        std::thread::Builder::new()
            .name("passwords".into())
            .spawn(move || work(&jobs))?;
    }
    Ok(sender)
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // Whoever has asked may have gone.
        if !job.answer.is_closed() {
            let _ = job.answer.send(job.users.are(&job.user, &job.password));
        }
    }
}

/// That a password was right: a code of it, and of whose it is.
pub(crate) type Proof = [u8; 32];

/// The proofs that a worker has seen. Nothing in them tells a password.
#[derive(Debug)]
pub(crate) struct Proofs {
    key: OnceLock<hmac::Key>,
    known: HashSet<Proof>,
    /// The same, the oldest first.
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

    /// What would prove that `user` of `users` has this password.
    pub(crate) fn of(&self, users: &Users, user: &str, password: &str) -> Proof {
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

    pub(crate) fn has(&self, proof: &Proof) -> bool {
        self.known.contains(proof)
    }

    /// Remembers a proof; the oldest is forgotten if there are too many.
    pub(crate) fn add(&mut self, proof: Proof) {
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
    fn proofs_are_of_one_user_and_password_and_the_oldest_are_forgotten() {
        let (mut proofs, users) = (Proofs::new(), Users::default());
        let anna = proofs.of(&users, "anna", "secret");
        for (user, password) in [("anna", "Secret"), ("ann", "asecret"), ("annas", "ecret")] {
            assert_ne!(proofs.of(&users, user, password), anna);
        }
        assert_ne!(Proofs::new().of(&users, "anna", "secret"), anna);
        assert!(!proofs.has(&anna));
        for _ in 0..2 {
            proofs.add(anna);
            assert!(proofs.has(&anna));
        }
        assert_eq!(proofs.order.len(), 1);
        for number in 0..MAX_PROOFS {
            let proof = proofs.of(&users, "bert", &number.to_string());
            proofs.add(proof);
        }
        assert!(!proofs.has(&anna));
        assert_eq!(
            (proofs.known.len(), proofs.order.len()),
            (MAX_PROOFS, MAX_PROOFS)
        );
    }
}
