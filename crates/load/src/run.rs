//! A run: threads, each with its part of the clients, and what they have counted.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::surge::{References, Step, User};
use evenkeel_config::{ClientTls, FileName};
use evenkeel_sim::work::{Popularity, draw_exponential};
use rustls::ClientConfig;

use crate::client::Client;
use crate::context::{Context, Failure};
use crate::plan::{Plan, Scheme, Tls, Workload};
use crate::runtime::Loop;
use crate::schedule::{Arrivals, Gaps};
use crate::stats::{Collector, Interval, IntervalCounts, Kind, Outcome, Recorder, Second};
use crate::{ftp, http2};

/// The longest that a user of SURGE pauses, in seconds: the tail has no end, and the clock has.
const LONGEST_PAUSE: f64 = 86_400.0;
/// Time after the end during which answers are awaited.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time until all threads have their clients.
const BEFORE: Duration = Duration::from_millis(20);

/// Makes the settings of the TLS client.
fn tls(tls: &Tls) -> Result<ClientConfig, String> {
    let settings = ClientTls {
        ca_file: tls.ca.clone().map(FileName::from),
        verify: !tls.insecure,
        ..ClientTls::default()
    };
    let client = evenkeel_tls::client::Client::from_config(&settings).map_err(|problems| {
        let all: Vec<_> = problems.iter().map(ToString::to_string).collect();
        format!("TLS: {}", all.join("; "))
    })?;
    Ok(client.into_config())
}

/// Makes a run. `show` is told of each second, with all that was counted in it; `stop` ends the run
/// early.
///
/// # Errors
///
/// The plan cannot be meant, or the first connection cannot be made.
pub fn run(
    plan: &Arc<Plan>,
    stop: &Arc<AtomicBool>,
    show: &mut dyn FnMut(&Second, &IntervalCounts),
) -> Result<Outcome, String> {
    plan.check()?;
    evenkeel_limits::files::raise_limit();
    let config = match plan.url.scheme {
        // Redirects may lead there from plain HTTP, too.
        Scheme::Https => Some(tls(&plan.tls)?),
        Scheme::Http => tls(&plan.tls).ok(),
        Scheme::Tcp | Scheme::Ftp => None,
    };
    let config = config.map(Arc::new);
    let address = first(plan, config.as_ref())?;
    let now = Instant::now() + BEFORE;
    let (tell, told) = mpsc::channel();
    let (mut spares, mut threads) = (Vec::new(), Vec::new());
    for number in 0..plan.threads {
        let (spare, taken) = mpsc::channel();
        spares.push(spare);
        let part = Part {
            number,
            start: now,
            counted_from: now + plan.warm_up,
            plan: Arc::clone(plan),
            tls: config.clone(),
            address,
            stop: Arc::clone(stop),
        };
        let tell = tell.clone();
        let name = format!("load-{number}");
        let thread = std::thread::Builder::new().name(name);
        let thread = thread.spawn(move || part.run(tell, taken));
        threads.push(thread.map_err(|error| format!("a thread cannot be started: {error}"))?);
    }
    drop(tell);
    let mut collector = Collector::new(spares);
    while let Ok(interval) = told.recv() {
        let interval: Interval = interval;
        if let Some((second, counted)) = collector.take_interval(interval) {
            show(second, counted);
        }
    }
    let mut never_begun = 0;
    for thread in threads {
        let left = thread.join().map_err(|_| "a thread has failed")?;
        never_begun += left.map_err(|error| format!("the event loop failed: {error}"))?;
    }
    Ok(collector.into_outcome(never_begun))
}

/// Makes a first connection, to the first address where that is possible: without one there is
/// nothing to measure.
fn first(
    plan: &Arc<Plan>,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<std::net::SocketAddr, String> {
    let found = plan.url.resolve()?;
    let fits = |address: &std::net::SocketAddr| {
        let from = plan.from.first();
        from.is_none_or(|from| from.is_ipv4() == address.is_ipv4())
    };
    let mut why = String::from("the host has no address of the family of --from");
    for address in found.into_iter().filter(fits) {
        match try_first(plan, tls, address) {
            Ok(()) => return Ok(address),
            Err(failure) => why = format!("{address}: {failure}"),
        }
    }
    Err(format!(
        "the first connection to {} cannot be made: {why}",
        plan.url.authority()
    ))
}

fn try_first(
    plan: &Arc<Plan>,
    tls: Option<&Arc<ClientConfig>>,
    address: std::net::SocketAddr,
) -> Result<(), String> {
    let now = Instant::now();
    let runtime = Loop::new(Arrivals::new(Gaps::Closed, now, None, None))
        .map_err(|error| error.to_string())?;
    let (tell, _told) = mpsc::channel();
    let (_spare, spares) = mpsc::channel();
    let recorder = Recorder::new(now, 0, tell, spares);
    let context = Context::new(
        Rc::clone(&runtime),
        Arc::clone(plan),
        recorder,
        tls.cloned(),
        address,
        1,
    );
    let result: Rc<std::cell::RefCell<Option<Result<(), Failure>>>> = Rc::default();
    let found = Rc::clone(&result);
    runtime.spawn(async move {
        let limit = now + context.plan.timeout;
        let tried = context.runtime.limit_until(limit, connect(&context)).await;
        let tried = tried.unwrap_or_else(|| Err(Failure::new(Kind::Timeout, &"no answer in time")));
        *found.borrow_mut() = Some(tried);
    });
    let mut chore = |now: Instant| now + PATIENCE;
    let is_there = |_: Instant| result.borrow().is_some();
    runtime
        .run(&mut chore, &is_there)
        .map_err(|error| error.to_string())?;
    runtime.clear();
    let result = result.borrow_mut().take();
    match result {
        Some(Err(failure)) => Err(failure.reason),
        _ => Ok(()),
    }
}

async fn connect(context: &Rc<Context>) -> Result<(), Failure> {
    match context.plan.url.scheme {
        Scheme::Ftp => drop(ftp::Session::log_in(context, 0).await?),
        _ if context.is_http2(&context.first) => {
            drop(http2::open_connection(context, &context.first, 0).await?);
        }
        _ => drop(context.connect(&context.first, 0).await?),
    }
    Ok(())
}

/// A thread's part of a run.
struct Part {
    number: usize,
    start: Instant,
    counted_from: Instant,
    plan: Arc<Plan>,
    tls: Option<Arc<ClientConfig>>,
    address: std::net::SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Part {
    /// The thread's share of a number.
    fn share(&self, all: u64) -> u64 {
        let threads = self.plan.threads as u64;
        let number = self.number as u64;
        all / threads + u64::from(number < all % threads)
    }

    fn gaps(&self) -> Gaps {
        let plan = &self.plan;
        if let Workload::Replay { order } = &plan.workload {
            let times = order.iter().skip(self.number).step_by(plan.threads);
            return Gaps::Recorded(times.map(|(at, _)| *at).collect());
        }
        let Some(rate) = plan.rate else {
            return Gaps::Closed;
        };
        let mean = plan.threads as f64 / rate;
        match plan.constant {
            true => Gaps::Constant(Duration::from_secs_f64(mean)),
            false => Gaps::Poisson {
                mean,
                rng: self.rng(0),
            },
        }
    }

    fn rng(&self, of: u64) -> fastrand::Rng {
        let thread = (self.number as u64) << 40;
        fastrand::Rng::with_seed(self.plan.seed.wrapping_add(thread).wrapping_add(of))
    }

    /// Runs it; returns how many planned requests were not begun.
    fn run(
        self,
        tell: mpsc::Sender<Interval>,
        spares: mpsc::Receiver<Box<IntervalCounts>>,
    ) -> std::io::Result<u64> {
        let plan = Arc::clone(&self.plan);
        let end = plan.duration.map(|time| self.counted_from + time);
        let most = plan.requests.map(|all| self.share(all));
        // Constant gaps of several threads are not at the same moments.
        let mut from = self.start;
        if let (true, Some(rate)) = (plan.constant, plan.rate) {
            from += Duration::from_secs_f64(self.number as f64 / rate);
        }
        let arrivals = Arrivals::new(self.gaps(), from, end, most);
        let runtime = Loop::new(arrivals)?;
        let recorder = Recorder::new(self.counted_from, self.number, tell, spares);
        let connections = self.share(plan.connections as u64) as usize;
        let context = Context::new(
            Rc::clone(&runtime),
            Arc::clone(&plan),
            recorder,
            self.tls.clone(),
            self.address,
            connections,
        );
        let popularity = plan
            .zipf
            .map(|alpha| Popularity::new(plan.asks.len(), alpha));
        let popularity = Rc::new(popularity);
        let references = match &plan.workload {
            Workload::Surge { site, .. } => Some(References::new(site, &mut self.rng(1))),
            _ => None,
        };
        let references = Rc::new(RefCell::new(references));
        let clients = match plan.http2 {
            true => connections.saturating_mul(plan.streams),
            false => connections,
        };
        for number in 0..clients {
            let of_all = match plan.http2 {
                true => (number % connections.max(1)) * plan.threads + self.number,
                false => number * plan.threads + self.number,
            };
            let worker = Worker {
                client: Client::new(&context, number, of_all),
                context: Rc::clone(&context),
                popularity: Rc::clone(&popularity),
                references: Rc::clone(&references),
                rng: self.rng(1 + number as u64),
                thread: self.number,
            };
            let start = self.start;
            runtime.spawn(async move {
                worker.context.runtime.sleep_until(start).await;
                worker.work().await;
            });
        }
        let mut busy = Busy::default();
        let mut cut = self.counted_from + Duration::from_secs(1);
        let mut is_counting = false;
        let stop = Arc::clone(&self.stop);
        let mut chore = |now: Instant| {
            if !is_counting {
                if now < self.counted_from {
                    return self.counted_from;
                }
                is_counting = true;
                busy = Busy::now(runtime.spin_time());
            }
            if end.is_some_and(|end| now >= end) || stop.load(Ordering::Relaxed) {
                runtime.close();
            }
            // The last part of a second is cut at its end.
            while now >= cut && end.is_none_or(|end| cut < end) {
                context.recorder.borrow_mut().cut_interval(
                    cut,
                    busy.since(runtime.spin_time()),
                    false,
                );
                cut += Duration::from_secs(1);
            }
            let soon = now + Duration::from_millis(100);
            let next = end.filter(|end| *end > now).map_or(cut, |end| end.min(cut));
            next.max(now + Duration::from_millis(1)).min(soon)
        };
        let stopped = std::cell::Cell::new(None);
        let until = |now: Instant| {
            if self.stop.load(Ordering::Relaxed) && stopped.get().is_none() {
                stopped.set(Some(now));
            }
            let end = [end, stopped.get()].into_iter().flatten().min();
            end.is_some_and(|end| now >= end + PATIENCE)
        };
        runtime.run(&mut chore, &until)?;
        let now = Instant::now();
        // What comes after the end counts as if it had come then.
        let ends = [end, stopped.get(), Some(now)].into_iter().flatten();
        let last = ends.min().unwrap_or(now).max(self.counted_from);
        let busy = busy.since(runtime.spin_time());
        let is_stopped = self.stop.load(Ordering::Relaxed);
        let never_begun = match is_stopped {
            true => 0,
            false => runtime.arrivals().reopen().skip_overdue(now),
        };
        context.recorder.borrow_mut().cut_interval(last, busy, true);
        runtime.clear();
        Ok(never_begun)
    }
}

/// CPU time of this thread.
#[derive(Clone, Copy, Default)]
struct Busy {
    cpu: Duration,
    spun: Duration,
}

impl Busy {
    fn now(spun: Duration) -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let cpu = Duration::try_from(time).unwrap_or_default();
        Busy { cpu, spun }
    }

    /// Returns the CPU time used since then, without the time in which the thread only spun.
    fn since(self, spun: Duration) -> Duration {
        let now = Busy::now(spun);
        let used = now.cpu.saturating_sub(self.cpu);
        used.saturating_sub(now.spun.saturating_sub(self.spun))
    }
}

/// A client at work.
struct Worker {
    client: Client,
    context: Rc<Context>,
    popularity: Rc<Option<Popularity>>,
    /// Documents that users of SURGE ask for, in an order that all users of a thread share.
    references: Rc<RefCell<Option<References>>>,
    rng: fastrand::Rng,
    thread: usize,
}

impl Worker {
    fn draw(&mut self) -> usize {
        let count = self.context.plan.asks.len();
        match &*self.popularity {
            _ if count <= 1 => 0,
            Some(popularity) => popularity.draw_rank(&mut self.rng),
            None => self.rng.usize(..count),
        }
    }

    async fn work(mut self) {
        let plan = Arc::clone(&self.context.plan);
        let runtime = Rc::clone(&self.context.runtime);
        let mut free = Instant::now();
        while let Some(next) = runtime.next_arrival(free).await {
            free = match &plan.workload {
                Workload::Requests if plan.url.scheme != Scheme::Ftp => {
                    let which = self.draw();
                    self.client
                        .send_due_request(which, next.due, next.free, next.taken_at)
                        .await
                }
                // A session of FTP has each file once.
                Workload::Requests => {
                    let which: Vec<_> = (0..plan.asks.len()).collect();
                    self.session(&which, Duration::ZERO, next.due, next.free)
                        .await
                }
                Workload::Replay { order } => {
                    let at = next.number as usize * plan.threads + self.thread;
                    let which = order.get(at).map_or(0, |(_, which)| *which as usize);
                    self.client
                        .send_due_request(which, next.due, next.free, next.taken_at)
                        .await
                }
                Workload::Sessions { requests, think } => {
                    let which: Vec<_> = (0..*requests).map(|_| self.draw()).collect();
                    if plan.url.scheme != Scheme::Ftp {
                        self.context
                            .recorder
                            .borrow_mut()
                            .count(|counted| counted.sessions += 1);
                    }
                    self.session(&which, *think, next.due, next.free).await
                }
                Workload::Surge { .. } => self.surge(&plan, next.due, next.free).await,
            };
        }
        self.client.say_goodbye().await;
    }

    /// Returns true if the run goes on.
    fn goes_on(&self) -> bool {
        !self.context.runtime.arrivals().is_closed()
    }

    async fn session(
        &mut self,
        which: &[usize],
        think: Duration,
        due: Instant,
        free: Instant,
    ) -> Instant {
        let (mut due, mut free) = (due, free);
        for (number, which) in which.iter().enumerate() {
            if number > 0 {
                if !self.goes_on() {
                    break;
                }
                let pause = draw_exponential(think.as_secs_f64(), &mut self.rng);
                (due, free) = self.pause(free, Duration::from_secs_f64(pause)).await;
            }
            free = self
                .client
                .send_due_request(*which, due, free, Instant::now())
                .await;
        }
        self.client.say_goodbye().await;
        Instant::now()
    }

    /// Waits; returns when it should have ended, and since when the client was free.
    async fn pause(&self, since: Instant, time: Duration) -> (Instant, Instant) {
        let due = since + time;
        if !time.is_zero() {
            self.context.runtime.sleep_until(due).await;
        }
        (due, since)
    }

    /// A session of SURGE.
    async fn surge(&mut self, plan: &Plan, due: Instant, free: Instant) -> Instant {
        let Workload::Surge { site, pace } = &plan.workload else {
            return free;
        };
        self.context
            .recorder
            .borrow_mut()
            .count(|counted| counted.sessions += 1);
        let mut user = User::new(*pace);
        let (mut due, mut free) = (due, free);
        let mut has_begun = false;
        while self.goes_on() {
            let step = match &mut *self.references.borrow_mut() {
                Some(references) => user.next(site, references, &mut self.rng),
                None => break,
            };
            match step {
                // The next session is the next arrival's.
                Step::Ask { begins: true, .. } if has_begun => break,
                Step::Ask { document, .. } => {
                    has_begun = true;
                    free = self
                        .client
                        .send_due_request(document, due, free, Instant::now())
                        .await;
                    due = free;
                }
                Step::Wait(seconds) => {
                    let time = Duration::from_secs_f64(seconds.clamp(0.0, LONGEST_PAUSE));
                    (due, free) = self.pause(free, time).await;
                }
            }
        }
        self.client.say_goodbye().await;
        Instant::now()
    }
}
