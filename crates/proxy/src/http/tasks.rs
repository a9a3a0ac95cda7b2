//! Tasks that serve clients or streams, one after the other: a task is kilobytes, and for each client or stream a
//! new one would cost more than all else that is allocated for it.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Most tasks of a pool that wait for work.
const MOST_IDLE: usize = 256;

/// Tasks of a worker that wait for work of one kind.
#[derive(Debug)]
pub(super) struct TaskPool<W> {
    idle: RefCell<Vec<Rc<TaskInbox<W>>>>,
}

impl<W> Default for TaskPool<W> {
    fn default() -> Self {
        let idle = RefCell::default();
        TaskPool { idle }
    }
}

/// Place where a task finds its work.
#[derive(Debug)]
pub(super) struct TaskInbox<W> {
    work: RefCell<Option<W>>,
    task: RefCell<Option<Waker>>,
}

impl<W> TaskPool<W> {
    /// Gives work to a task that waits for some. Returns the inbox of a new task, which the caller begins, if none waits.
    pub(super) fn assign(&self, work: W) -> Option<Rc<TaskInbox<W>>> {
        let idle = self.idle.borrow_mut().pop();
        let Some(inbox) = idle else {
            return Some(Rc::new(TaskInbox {
                work: RefCell::new(Some(work)),
                task: RefCell::default(),
            }));
        };
        inbox.work.replace(Some(work));
        if let Some(task) = &*inbox.task.borrow() {
            task.wake_by_ref();
        }
        None
    }

    /// Has a task that has done its work wait for more; false if enough tasks wait. A task that has panicked
    /// is not among those that wait.
    pub(super) fn keep_task(&self, inbox: &Rc<TaskInbox<W>>) -> bool {
        let mut idle = self.idle.borrow_mut();
        let has_room = idle.len() < MOST_IDLE;
        if has_room {
            idle.push(Rc::clone(inbox));
        }
        has_room
    }
}

impl<W> TaskInbox<W> {
    /// Waits for work. Only the task of the inbox calls this.
    pub(super) async fn next_work(&self) -> W {
        std::future::poll_fn(|cx| {
            if let Some(work) = self.work.take() {
                return Poll::Ready(work);
            }
            self.task
                .borrow_mut()
                .get_or_insert_with(|| cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}
