//! Tasks that serve streams, one stream after the other: a task is kilobytes, and for each stream a
//! new one would cost more than all else that is allocated for it.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::serve_stream;
use crate::http2::server::Work;

/// Most tasks that wait for a stream.
const MOST_IDLE: usize = 256;

/// The tasks of a worker that wait for a stream.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    idle: RefCell<Vec<Rc<TaskInbox>>>,
}

/// Place where a task finds its work.
#[derive(Debug)]
struct TaskInbox {
    work: RefCell<Option<Work>>,
    task: RefCell<Option<Waker>>,
}

impl Tasks {
    /// Has a stream served.
    pub(super) fn serve_stream(self: &Rc<Self>, work: Work) {
        let idle = self.idle.borrow_mut().pop();
        let Some(desk) = idle else {
            tokio::task::spawn_local(run(Rc::clone(self), work));
            return;
        };
        desk.work.replace(Some(work));
        if let Some(task) = &*desk.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Waits for work; false if there are enough who do.
    fn wait_for_work(&self, desk: &Rc<TaskInbox>) -> bool {
        let mut idle = self.idle.borrow_mut();
        let has_room = idle.len() < MOST_IDLE;
        if has_room {
            idle.push(Rc::clone(desk));
        }
        has_room
    }
}

/// A task. Should it panic, nobody finds its desk among those of the others.
async fn run(tasks: Rc<Tasks>, work: Work) {
    let desk = Rc::new(TaskInbox {
        work: RefCell::new(Some(work)),
        task: RefCell::default(),
    });
    loop {
        let next = std::future::poll_fn(|cx| {
            if let Some(work) = desk.work.take() {
                return Poll::Ready(work);
            }
            desk.task
                .borrow_mut()
                .get_or_insert_with(|| cx.waker().clone());
            Poll::Pending
        });
        let Work {
            connection,
            stream,
            head,
            connects,
        } = next.await;
        serve_stream(&connection, stream, head, connects).await;
        drop(connection);
        if !tasks.wait_for_work(&desk) {
            return;
        }
    }
}
