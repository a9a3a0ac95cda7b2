//! A worker: one thread, one single-threaded runtime, its own listeners (by
//! `SO_REUSEPORT`), connections, pools and counters. Workers share groups, which are
//! lock-free, and nothing else on the hot path. Here is what all tasks of a worker use; its thread,
//! rules and listeners are in `dispatcher`.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use evenkeel_core::time::Instant;
use evenkeel_net::Clock;
use evenkeel_net::http::IdleConnections;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::access::AccessLog;
use crate::buffer::BufferPool;
use crate::date::HttpDate;
use crate::files::{ClientFile, ConnectionFile, Files, WaitReason};
use crate::http::prompt::Prompts;
use crate::http2::links::Links;
use crate::memory::Memory;
use crate::passwords::Proofs;
use crate::pipe::{Pipe, PipePool};
use crate::pool::UpstreamPool;
use crate::timers::{self, Timers};
use crate::trace::Tracer;
use crate::watch::{TICK, Watchers};

/// State that all tasks of a worker share.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) clock: Clock,
    pub(crate) rng: RefCell<fastrand::Rng>,
    pub(crate) buffers: BufferPool,
    pub(crate) pipes: PipePool,
    pub(crate) upstreams: UpstreamPool,
    /// Idle connections to choosers.
    pub(crate) choosers: IdleConnections<ConnectionFile>,
    pub(crate) links: Links,
    pub(crate) files: Arc<Files>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) watchers: Rc<Watchers>,
    pub(crate) timers: Rc<Timers>,
    pub(crate) log: RefCell<Option<AccessLog>>,
    pub(crate) tracer: RefCell<Option<Tracer>>,
    /// True if there is a log or a tracer.
    pub(crate) records: Cell<bool>,
    /// Date of answers of the balancer's own.
    pub(crate) date: HttpDate,
    /// Readers of prompts that are not used now.
    pub(crate) prompts: Prompts,
    /// Passwords that were right.
    pub(crate) proofs: RefCell<Proofs>,
    /// The process ends: HTTP connections that stay idle are closed, those of rules
    /// that are gone, too.
    pub(crate) closing: Cell<bool>,
    /// Another process accepts clients. When this one ends, idle connections may stay as long as
    /// anything may: their clients need not notice.
    pub(crate) rests: Cell<bool>,
    /// Tasks that have read something and let others read before they send it.
    deferred: Cell<usize>,
    /// Client connections being served.
    pub(crate) open: Cell<usize>,
    /// A task has panicked that the worker cannot do without.
    pub(crate) broken: Cell<bool>,
}

/// Most tasks that hold what they have read while others read.
const MAX_DEFERRED: usize = 64;

/// Kept by a task that the worker cannot do without: if it panics, the worker ends.
pub(crate) struct Vital(pub(crate) Rc<Worker>);

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.set(true);
        }
    }
}

pub(crate) fn build_worker(
    clock: Clock,
    files: Arc<Files>,
    memory: Arc<Memory>,
) -> io::Result<(LocalRuntime, Rc<Worker>, OwnedFd)> {
    // No time driver: it would read the clock and look at its wheel in every turn of
    // the event loop. A timer file ticks for the sweep instead.
    let runtime = Builder::new_current_thread()
        .enable_io()
        .event_interval(128)
        .global_queue_interval(1024)
        .build_local(LocalOptions::default())?;
    let timer = timers::timer_file()?;
    timers::set(&timer, TICK, TICK)?;
    let worker = Rc::new(Worker {
        clock,
        rng: RefCell::new(fastrand::Rng::new()),
        buffers: BufferPool::new(Arc::clone(&memory)),
        pipes: PipePool::new(Arc::clone(&files)),
        upstreams: UpstreamPool::default(),
        choosers: IdleConnections::default(),
        links: Links::default(),
        date: HttpDate::default(),
        prompts: Prompts::default(),
        proofs: RefCell::new(Proofs::new()),
        files,
        memory,
        watchers: Watchers::new(clock.now()),
        timers: Timers::new(clock),
        log: RefCell::new(None),
        tracer: RefCell::new(None),
        records: Cell::new(false),
        closing: Cell::new(false),
        rests: Cell::new(false),
        deferred: Cell::new(0),
        open: Cell::new(0),
        broken: Cell::new(false),
    });
    Ok((runtime, worker, timer))
}

impl Worker {
    /// The current instant.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Notes whether there is a log or a tracer.
    pub(crate) fn note_records(&self) {
        let (log, tracer) = (self.log.borrow(), self.tracer.borrow());
        self.records.set(log.is_some() || tracer.is_some());
    }

    /// Lets the tasks that are ready read what has come in, before the caller sends what it has
    /// read. So what goes to one peer leaves together, and wakes it once instead of for every
    /// message: 6 % less processor time for a small request. Waits for nothing that is not ready,
    /// and makes no system call. For TCP, where nothing else is done for a message, it gains nothing.
    pub(crate) fn others_first(&self) -> impl Future<Output = ()> {
        let mut has_waited = false;
        std::future::poll_fn(move |cx| {
            let waiting = self.deferred.get();
            if has_waited {
                self.deferred.set(waiting.saturating_sub(1));
                return Poll::Ready(());
            }
            if waiting >= MAX_DEFERRED {
                return Poll::Ready(());
            }
            has_waited = true;
            self.deferred.set(waiting + 1);
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    /// The right to another connection, if need be in place of an idle one to a member.
    pub(crate) fn connection_file(&self) -> Option<ConnectionFile> {
        loop {
            let file = self.files.take_connection();
            if file.is_some() || !self.close_idle() {
                return file;
            }
        }
    }

    /// The right to another client, if need be in place of an idle connection to a member.
    pub(crate) fn client_file(&self) -> Result<ClientFile, WaitReason> {
        loop {
            match self.files.take_client() {
                Err(WaitReason::Connections) if self.close_idle() => {}
                result => return result,
            }
        }
    }

    /// Closes files that nobody needs at the moment; answers whether there was one.
    pub(crate) fn close_idle(&self) -> bool {
        self.pipes.clear() || self.upstreams.evict_oldest() || self.links.evict_idle()
    }

    /// A pipe, if there is one to be had.
    pub(crate) fn take_pipe(&self) -> Option<Pipe> {
        self.pipes.take(self.watchers.coarse_now())
    }
}

#[cfg(test)]
pub(crate) mod tests;
