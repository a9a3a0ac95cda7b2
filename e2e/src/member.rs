//! Members that do what a test tells them.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::HANG;
use crate::wire::{Ended, Message, Wire};

/// A member: each of its connections runs the script in a thread of its own.
///
/// Its threads end with their connections, at the latest with the test's process.
pub struct Member {
    address: SocketAddr,
    seen: Receiver<Seen>,
}

/// Events that a member saw, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A whole request, and the number of the connection that it came on.
    Request(usize, Message),
    /// The connection of that number ended.
    End(usize, Ended),
}

/// The script's view of a member.
pub struct Script {
    /// Number of this connection, from zero.
    pub connection: usize,
    seen: Sender<Seen>,
}

impl Script {
    /// Reads the next request and notes it; `None` when the connection ends.
    pub fn read_request(&self, wire: &mut Wire) -> Option<Message> {
        match wire.read_request() {
            Ok(request) => {
                self.record_event(Seen::Request(self.connection, request.clone()));
                Some(request)
            }
            Err(ended) => {
                self.record_event(Seen::End(self.connection, ended));
                None
            }
        }
    }

    /// Notes something.
    pub fn record_event(&self, seen: Seen) {
        // The test may have ended.
        let _ = self.seen.send(seen);
    }
}

impl Member {
    /// Starts a member.
    pub fn start(script: impl Fn(&Script, Wire) + Send + Sync + 'static) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").expect("a port"), script)
    }

    /// Starts a member at a port that is bound already.
    pub fn start_at(
        listener: TcpListener,
        script: impl Fn(&Script, Wire) + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("an address");
        let (sender, seen) = channel();
        let script = Arc::new(script);
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                let view = Script {
                    connection,
                    seen: sender.clone(),
                };
                let script = Arc::clone(&script);
                thread::spawn(move || script(&view, Wire::new(stream)));
            }
        });
        Self { address, seen }
    }

    /// A member that answers each request by `answer`, and keeps its connections.
    pub fn answering_with(answer: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        Self::start(move |script, mut wire| {
            while let Some(request) = script.read_request(&mut wire) {
                if !wire.try_send(answer(&request)) {
                    break;
                }
            }
        })
    }

    /// A member that answers each request with its target.
    pub fn echoing_targets() -> Self {
        Self::answering_with(|request| ok_response(request.second_word()))
    }

    /// A member that sends `answer` after each request head and then closes.
    pub fn closing_after(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |script, mut wire| {
            if script.read_request(&mut wire).is_some() {
                wire.try_send(&answer);
            }
        })
    }

    /// Returns the address at which the member listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next event that the member sees.
    pub fn next(&self) -> Seen {
        self.seen
            .recv_timeout(HANG)
            .expect("the member sees something")
    }

    /// The next request that it sees, and the number of its connection.
    pub fn next_request(&self) -> (usize, Message) {
        loop {
            if let Seen::Request(connection, request) = self.next() {
                return (connection, request);
            }
        }
    }

    /// All that it has seen since it was last asked.
    pub fn seen_events(&self) -> Vec<Seen> {
        self.seen.try_iter().collect()
    }
}

/// A response with a text.
pub fn ok_response(text: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
}

/// Something that one thread puts and another waits for.
pub struct Signal {
    sender: Mutex<Sender<()>>,
    receiver: Mutex<Receiver<()>>,
}

impl Default for Signal {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self {
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
        }
    }
}

impl Signal {
    /// Lets one wait end.
    pub fn release_one(&self) {
        // Both ends live as long as this.
        let _ = self.sender.lock().expect("no panic").send(());
    }

    /// Waits for one `give`.
    pub fn wait_for_release(&self) {
        let receiver = self.receiver.lock().expect("no panic");
        receiver.recv_timeout(HANG).expect("a signal");
    }
}
