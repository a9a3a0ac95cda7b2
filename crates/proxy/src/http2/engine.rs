//! A connection of HTTP/2, shared by the task that moves its bytes and the tasks of its streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use evenkeel_http2::{Config, Connection, Event, Failure, Fields, Key, Reason};

/// Lists of fields that are kept to be filled again.
const SPARE_FIELDS: usize = 8;

/// The connection, and who waits for what.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) connection: RefCell<Connection>,
    /// Tasks of streams, by their slots.
    streams: RefCell<Vec<Option<Waker>>>,
    /// The connection's task.
    pub(super) task: RefCell<Option<Waker>>,
    spare: RefCell<Vec<Fields>>,
    /// Bytes that the peer has taken.
    pub(super) sent: Cell<u64>,
}

/// News for the connection's task.
#[derive(Debug)]
pub(super) enum Step {
    /// A request has come.
    Request(Key),
    /// There may be room for other streams, or the peer's settings are here.
    Settled,
    /// The peer has answered a PING.
    Pong,
    /// The connection has failed. What is to be sent last remains to be sent.
    Failed(Failure),
    /// Everything was sent, and the connection is closed.
    Over,
    /// The peer has closed the connection.
    Gone,
}

impl Engine {
    pub(super) fn new(config: Config) -> Rc<Self> {
        Rc::new(Engine {
            connection: RefCell::new(Connection::new(config)),
            streams: RefCell::default(),
            task: RefCell::default(),
            spare: RefCell::default(),
            sent: Cell::new(0),
        })
    }

    /// Does something to the connection. Its task is told if there is something to send or to pass on then.
    pub(super) fn with_connection<T>(&self, act: impl FnOnce(&mut Connection) -> T) -> T {
        let mut connection = self.connection.borrow_mut();
        let before = connection.pending_output().len();
        let result = act(&mut connection);
        let has_work = connection.pending_output().len() > before || connection.has_events();
        drop(connection);
        if has_work {
            self.wake_task();
        }
        result
    }

    /// Looks at the connection.
    pub(super) fn read_connection<T>(&self, see: impl FnOnce(&Connection) -> T) -> T {
        see(&self.connection.borrow())
    }

    /// Has the connection's task look after it.
    pub(super) fn wake_task(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Bytes that the peer has taken since the beginning.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent.get()
    }

    /// Has the caller's task told of everything that happens to a stream.
    pub(super) fn register_waker(&self, key: Key, cx: &Context<'_>) {
        let mut streams = self.streams.borrow_mut();
        let slot = key.slot();
        if streams.len() <= slot {
            streams.resize(slot + 1, None);
        }
        if let Some(known) = streams.get_mut(slot)
            && !known
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
        {
            *known = Some(cx.waker().clone());
        }
    }

    /// Says that nobody uses a stream any more, and forgets who was told of it.
    pub(super) fn release_stream(&self, key: Key, reason: Option<Reason>) {
        let mut streams = self.streams.borrow_mut();
        let task = streams.get_mut(key.slot()).and_then(Option::take);
        drop(streams);
        drop(task);
        self.with_connection(|connection| connection.release_stream(key, reason));
    }

    /// True if a stream has ended before its time. If not, the caller's task is told when it does.
    pub(super) fn is_broken(&self, key: Key, cx: &Context<'_>) -> bool {
        self.register_waker(key, cx);
        self.read_connection(|connection| connection.stream_break(key).is_some())
    }

    /// A list to be filled with fields.
    pub(super) fn take_fields(&self) -> Fields {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes a list back.
    pub(super) fn give_fields(&self, mut fields: Fields) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_FIELDS && fields.is_worth_keeping() {
            fields.clear();
            spare.push(fields);
        }
    }

    /// Gives memory back that streams have needed: there is none now.
    pub(super) fn release_memory(&self) {
        self.spare.borrow_mut().truncate(1);
    }

    pub(super) fn wake_stream(&self, key: Key) {
        let streams = self.streams.borrow();
        if let Some(Some(task)) = streams.get(key.slot()) {
            task.wake_by_ref();
        }
    }

    /// Tells all streams that the connection is gone.
    pub(super) fn disconnect_streams(&self) {
        self.connection.borrow_mut().mark_disconnected();
        while let Some(event) = self.next_event() {
            if let Event::Readable(key) | Event::Writable(key) | Event::Broken(key) = event {
                self.wake_stream(key);
            }
        }
    }

    pub(super) fn next_event(&self) -> Option<Event> {
        self.connection.borrow_mut().next_event()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use evenkeel_http2::{Opening, Role};

    use super::*;

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_task_is_forgotten_with_its_stream() {
        let engine = Engine::new(Config {
            role: Role::Client,
            max_streams: 0,
            max_head_bytes: 1000,
            stream_window: 65_535,
            connection_window: 65_535,
        });
        let opening = Opening {
            method: b"GET",
            scheme: b"http",
            authority: Some(b"test"),
            path: b"/",
            ..Opening::default()
        };
        let open = || {
            engine.with_connection(|connection| {
                connection.open_request(opening, &Fields::new(), true)
            })
        };
        let (Ok(first), Ok(second)) = (open(), open()) else {
            unreachable!("there is room for two");
        };
        let tasks = [first, second].map(|key| {
            let task = Arc::new(Task);
            let waker = Waker::from(Arc::clone(&task));
            engine.register_waker(key, &Context::from_waker(&waker));
            task
        });
        let known = || [&tasks[0], &tasks[1]].map(|task| Arc::strong_count(task) - 1);
        assert_eq!(known(), [1, 1]);
        engine.release_stream(first, None);
        assert_eq!(known(), [0, 1], "the other one is still told");
        engine.release_stream(second, None);
        assert_eq!(known(), [0, 0]);
    }
}
