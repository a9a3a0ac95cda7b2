//! The calls of ARM 2.0, for C; `include/arm.h` is their manual.
//!
//! Whatever comes in (pointers apart, which C cannot check) is answered: a call that makes
//! no sense returns -1 and changes nothing.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::num::NonZero;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use std::{ptr, slice, thread};

use crate::counting::Status;
use crate::layout::{NAME_MAX, Page, digest};
use crate::memory;
use crate::metrics::{MetricPositions, Values};
use crate::page::{LEASE_MAX, monotonic_nanos};
use crate::process::{ProcessId, pid_namespace};
use crate::transactions::{STRIPES, Table, Transaction};

/// The answer to what makes no sense.
const ERROR: i32 = -1;
const SUCCESS: i32 = 0;

/// Applications that one process can be.
const APPLICATIONS: usize = 64;
/// Classes of transactions that one process can have.
const CLASSES: usize = 1024;

static TABLE: Table = Table::new();
static PROCESS: Process = Process {
    busy: AtomicBool::new(false),
    watches_forks: AtomicBool::new(false),
    applications: [const { Application::new() }; APPLICATIONS],
    classes: [const { Class::new() }; CLASSES],
};

/// State of this process. It is changed by one thread at a time, and read by all.
struct Process {
    /// Held by the thread that changes it.
    busy: AtomicBool,
    watches_forks: AtomicBool,
    applications: [Application; APPLICATIONS],
    classes: [Class; CLASSES],
}

// What a transaction needs comes first, and begins a cache line.
#[repr(C, align(128))]
struct Application {
    /// Null if the place is free. Once set it stays, for a thread may look at it at any
    /// time.
    page: AtomicPtr<Page>,
    /// `arm_init` less `arm_end`; 0 if the application is not in use.
    instances: AtomicU32,
    /// The lane that says so to others, plus 1; 0 if there is none yet.
    home: AtomicU32,
    /// The lane of each stripe, plus 1; 0 if it has none yet.
    lanes: [AtomicU32; STRIPES],
    /// A digest of the name.
    name: AtomicU64,
    /// Device and inode of the page's file; zeros if it is private memory.
    file: [AtomicU64; 2],
}

struct Class {
    /// 0 if the place is free. See [`Class::pack`].
    meaning: AtomicU64,
    /// A digest of the names of the class.
    names: AtomicU64,
}

/// Opens an application: its identifier.
///
/// # Safety
///
/// `appl_name` is null or a string of C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_init(
    appl_name: *const c_char,
    _appl_user_id: *const c_char,
    _flags: i32,
    _data: *const c_char,
    _data_size: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let Some(name) = (unsafe { name(appl_name) }).filter(|name| !name.is_empty()) else {
        return ERROR;
    };
    PROCESS.alone(|| PROCESS.open(&name)).unwrap_or(ERROR)
}

/// Names a class of transactions, and says what data they come with: its identifier.
///
/// # Safety
///
/// The names are null or strings of C; `data` is null or has `data_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_getid(
    appl_id: i32,
    tran_name: *const c_char,
    tran_detail: *const c_char,
    _flags: i32,
    data: *const c_char,
    data_size: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let (name, detail) = unsafe { (name(tran_name), name(tran_detail)) };
    // SAFETY: the caller's promise.
    let data = unsafe { buffer(data, data_size) };
    let Some(name) = name else {
        return ERROR;
    };
    // A name has no control characters, so this joins no two pairs alike.
    let names = format!("{name}\n{}", detail.unwrap_or_default());
    let class = PROCESS.alone(|| PROCESS.class(appl_id, digest(names.as_bytes()), data));
    class.map_or(ERROR, |class| class as i32 + 1)
}

/// A transaction of a class starts: its handle.
///
/// # Safety
///
/// `data` is null or has `data_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_start(
    tran_id: i32,
    _flags: i32,
    data: *const c_char,
    data_size: i32,
) -> i32 {
    let now = monotonic_nanos();
    // SAFETY: the caller's promise.
    let data = unsafe { buffer(data, data_size) };
    PROCESS.start(tran_id, data, now).unwrap_or(ERROR)
}

/// A transaction goes on, and has more data.
///
/// # Safety
///
/// `data` is null or has `data_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_update(
    start_handle: i32,
    _flags: i32,
    data: *const c_char,
    data_size: i32,
) -> i32 {
    let Some(class) = TABLE.class_of(start_handle) else {
        return ERROR;
    };
    // SAFETY: the caller's promise.
    let data = unsafe { buffer(data, data_size) };
    let places = PROCESS
        .meaning(class)
        .map_or(MetricPositions::default(), |(_, places)| places);
    let given = places.values(data);
    if TABLE.update(start_handle, given.client, given.wait) {
        SUCCESS
    } else {
        ERROR
    }
}

/// A transaction stops.
///
/// # Safety
///
/// `data` is null or has `data_size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_stop(
    start_handle: i32,
    tran_status: i32,
    _flags: i32,
    data: *const c_char,
    data_size: i32,
) -> i32 {
    let now = monotonic_nanos();
    // SAFETY: the caller's promise.
    let data = unsafe { buffer(data, data_size) };
    let Some(transaction) = TABLE.stop(start_handle) else {
        return ERROR;
    };
    let status = match tran_status {
        0 => Status::Good,
        1 => Status::Aborted,
        _ => Status::Failed,
    };
    PROCESS.stop(transaction, status, data, now);
    SUCCESS
}

/// Closes an application; its transactions in flight are given up.
///
/// # Safety
///
/// None of it is needed: it is `unsafe` as its sisters are.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn arm_end(
    appl_id: i32,
    _flags: i32,
    _data: *const c_char,
    _data_size: i32,
) -> i32 {
    let closed = PROCESS.alone(|| PROCESS.close(appl_id));
    closed.map_or(ERROR, |()| SUCCESS)
}

/// Tells if an application is under a load alert now: 1 if so, else 0.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn evenkeel_shed(appl_id: i32) -> c_int {
    let Some((_, page)) = PROCESS.application(appl_id) else {
        return 0;
    };
    let until = page.header.pulse.alert_until.load(Relaxed);
    if until == 0 {
        return 0;
    }
    // A lease that is too long is none: no agent wrote it.
    let left = until.saturating_sub(monotonic_nanos());
    c_int::from(left > 0 && u128::from(left) <= LEASE_MAX.as_nanos())
}

/// Tells if an agent can see what an application counts: 1 if so, 0 if there was no place for
/// its page.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn evenkeel_measured(appl_id: i32) -> c_int {
    let application = PROCESS.application(appl_id);
    c_int::from(application.is_some_and(|(application, _)| application.is_shared()))
}

impl Process {
    /// Runs while no other thread changes anything here.
    fn alone<R>(&self, change: impl FnOnce() -> R) -> R {
        while self
            .busy
            .compare_exchange_weak(false, true, Acquire, Relaxed)
            .is_err()
        {
            thread::yield_now();
        }
        let result = change();
        self.busy.store(false, Release);
        result
    }

    /// An application that is in use, and its page.
    #[inline]
    fn application(&self, id: i32) -> Option<(&Application, &'static Page)> {
        let application = self.applications.get(index(id)?)?;
        let in_use = application.instances.load(Relaxed) > 0;
        in_use.then_some(application).zip(application.page())
    }

    fn open(&self, name: &str) -> Option<i32> {
        self.watch_forks();
        let digest = digest(name.as_bytes());
        let is_it = |application: &Application| application.name.load(Relaxed) == digest;
        let is_free = |application: &Application| application.page().is_none();
        let all = &self.applications;
        let place = all.iter().position(|it| !is_free(it) && is_it(it));
        let place = place.or_else(|| all.iter().position(is_free))?;
        let application = all.get(place)?;
        let first = application.instances.load(Relaxed) == 0;
        if first {
            application.renew(name)?;
            application.name.store(digest, Relaxed);
        }
        let page = application.page()?;
        if first {
            page.release_dead_lanes(ProcessId::current(), pid_namespace(), true);
        }
        application.instances.fetch_add(1, Relaxed);
        page.header.rare.inits.fetch_add(1, Relaxed);
        application.lane(stripe(), page);
        application.announce(page);
        i32::try_from(place + 1).ok()
    }

    fn close(&self, id: i32) -> Option<()> {
        let (application, page) = self.application(id)?;
        page.header.rare.ends.fetch_add(1, Relaxed);
        let instances = application.instances.fetch_sub(1, Relaxed);
        if instances > 1 {
            application.announce(page);
            return Some(());
        }
        let is_its = |class| self.meaning(class).is_some_and(|(of, _)| of == id);
        TABLE.forget_classes(is_its, |transaction| page.count_lost(transaction.lane));
        application.leave(page);
        Some(())
    }

    /// Finds or makes a class.
    fn class(&self, id: i32, names: u64, data: &[u8]) -> Option<usize> {
        self.application(id)?;
        let is_it = |(at, class): (usize, &Class)| {
            let same = class.names.load(Relaxed) == names;
            same && self.meaning(at as u16).is_some_and(|(of, _)| of == id)
        };
        let is_free = |class: &Class| class.meaning.load(Relaxed) == 0;
        let known = self.classes.iter().enumerate().position(is_it);
        let at = known.or_else(|| self.classes.iter().position(is_free))?;
        let class = self.classes.get(at)?;
        // Who asks for the same class again, without data, means the one that it knows.
        if known.is_none() || !data.is_empty() {
            class.names.store(names, Relaxed);
            let meaning = Class::pack(id, MetricPositions::parse(data));
            class.meaning.store(meaning, Release);
        }
        Some(at)
    }

    /// The application of a class, and where its metrics are.
    #[inline]
    fn meaning(&self, class: u16) -> Option<(i32, MetricPositions)> {
        let class = self.classes.get(usize::from(class))?;
        Class::unpack(class.meaning.load(Acquire))
    }

    #[inline]
    fn start(&self, tran_id: i32, data: &[u8], now: u64) -> Option<i32> {
        let class = u16::try_from(index(tran_id)?).ok()?;
        let (id, places) = self.meaning(class)?;
        let (application, page) = self.application(id)?;
        let Values { client, wait } = places.values(data);
        let stripe = stripe();
        let lane = application.lane(stripe, page);
        let transaction = Transaction {
            class,
            lane,
            start: now,
            alone: page.start(lane, client, now),
            client,
            wait,
        };
        let Some((handle, ousted)) = TABLE.start(stripe, &transaction) else {
            page.count_lost(lane);
            return None;
        };
        if let Some(ousted) = ousted {
            let of = self.meaning(ousted.class);
            if let Some((_, page)) = of.and_then(|(id, _)| self.application(id)) {
                page.count_lost(ousted.lane);
            }
        }
        Some(handle)
    }

    #[inline]
    fn stop(&self, mut transaction: Transaction, status: Status, data: &[u8], now: u64) {
        let Some((id, places)) = self.meaning(transaction.class) else {
            return;
        };
        let Some((_, page)) = self.application(id) else {
            return;
        };
        let given = places.values(data);
        transaction.client = given.client.or(transaction.client);
        transaction.wait = given.wait.or(transaction.wait);
        page.stop(&transaction, status, now);
    }

    /// Has a copy of this process start with nothing in flight and with lanes of its own.
    fn watch_forks(&self) {
        if self.watches_forks.swap(true, Relaxed) {
            return;
        }
        // SAFETY: the handler lives as long as the process: this library is not unloaded.
        // If there is no memory for it, copies count on their parent's lanes, which is
        // wrong only when one is killed.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

/// In a copy of a process, before anything else: it has one thread, takes no lock here
/// and allocates nothing.
extern "C" fn forked() {
    TABLE.forget_all();
    for application in &PROCESS.applications {
        application.home.store(0, Relaxed);
        for lane in &application.lanes {
            lane.store(0, Relaxed);
        }
    }
    // Who held it, if anybody did, is not here.
    PROCESS.busy.store(false, Relaxed);
}

impl Application {
    const fn new() -> Self {
        Self {
            page: AtomicPtr::new(ptr::null_mut()),
            instances: AtomicU32::new(0),
            home: AtomicU32::new(0),
            lanes: [const { AtomicU32::new(0) }; STRIPES],
            name: AtomicU64::new(0),
            file: [const { AtomicU64::new(0) }; 2],
        }
    }

    #[inline]
    fn page(&self) -> Option<&'static Page> {
        // SAFETY: null, or from `memory`, which maps pages for good.
        unsafe { self.page.load(Acquire).as_ref() }
    }

    /// Sees to it that the page is the one that everybody finds.
    fn renew(&self, name: &str) -> Option<()> {
        let [device, inode] = &self.file;
        let old = self
            .page()
            .map(|_| (device.load(Relaxed), inode.load(Relaxed)));
        if old.is_some_and(|old| memory::is_current(old, name)) {
            return Some(());
        }
        let (page, file) = match memory::map_shared_page(name) {
            Ok(shared) => shared,
            // Not measured, and no worse for it.
            Err(_) if old.is_some() => return Some(()),
            Err(_) => (memory::private_page(name)?, (0, 0)),
        };
        device.store(file.0, Relaxed);
        inode.store(file.1, Relaxed);
        self.page.store(ptr::from_ref(page).cast_mut(), Release);
        Some(())
    }

    fn is_shared(&self) -> bool {
        self.file.iter().any(|part| part.load(Relaxed) != 0)
    }

    /// The lane of a stripe.
    #[inline]
    fn lane(&self, stripe: usize, page: &Page) -> u16 {
        match self.lanes.get(stripe).map_or(0, |lane| lane.load(Acquire)) {
            0 => self.claim(stripe, page),
            lane => (lane - 1) as u16,
        }
    }

    /// Gets a lane for a stripe: the only part of a transaction's start that asks the
    /// system for anything, once in the life of a thread.
    #[cold]
    fn claim(&self, stripe: usize, page: &Page) -> u16 {
        let (me, namespace) = (ProcessId::current(), pid_namespace());
        if self.home.load(Acquire) == 0 {
            // A process comes, perhaps in place of one that died.
            page.release_dead_lanes(me, namespace, false);
        }
        let lane = page.claim_lane(me, namespace);
        let Some(cell) = self.lanes.get(stripe) else {
            return 0;
        };
        let mine = u32::from(lane) + 1;
        if let Err(other) = cell.compare_exchange(0, mine, AcqRel, Acquire) {
            page.give_back(lane, me);
            return (other - 1) as u16;
        }
        if lane != 0 && self.home.compare_exchange(0, mine, AcqRel, Acquire).is_ok() {
            self.announce(page);
        }
        lane
    }

    /// Says in the page how often this process has the application open.
    fn announce(&self, page: &Page) {
        if let Some(home) = self.home.load(Acquire).checked_sub(1) {
            let instances = self.instances.load(Relaxed);
            page.lane(home as u16)
                .instances
                .store(instances.into(), Relaxed);
        }
    }

    /// Gives all lanes back.
    fn leave(&self, page: &Page) {
        self.home.store(0, Relaxed);
        let me = ProcessId::current();
        for lane in &self.lanes {
            if let Some(lane) = lane.swap(0, AcqRel).checked_sub(1) {
                page.give_back(lane as u16, me);
            }
        }
    }
}

impl Class {
    const fn new() -> Self {
        Self {
            meaning: AtomicU64::new(0),
            names: AtomicU64::new(0),
        }
    }

    /// The identifier of an application is never 0.
    fn pack(application: i32, places: MetricPositions) -> u64 {
        u64::from(application.cast_unsigned()) << 32 | places.pack()
    }

    #[inline]
    fn unpack(meaning: u64) -> Option<(i32, MetricPositions)> {
        let application = ((meaning >> 32) as u32).cast_signed();
        (application != 0).then(|| (application, MetricPositions::unpack(meaning & 0xffff_ffff)))
    }
}

/// The index that an identifier stands for.
#[inline]
fn index(id: i32) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(1)
}

/// The stripe of the calling thread: threads are dealt out in turn, over as many stripes
/// as can run at once. More would not keep them apart better, and each is memory that has
/// to be in a cache when a server hands its requests from thread to thread.
#[inline]
fn stripe() -> usize {
    const NONE: usize = usize::MAX;
    thread_local! {
        static STRIPE: Cell<usize> = const { Cell::new(NONE) };
    }
    STRIPE.with(|stripe| {
        if stripe.get() == NONE {
            stripe.set(deal());
        }
        stripe.get()
    })
}

#[cold]
fn deal() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    /// Asked once, because that takes many times as long as a transaction; no lock,
    /// because a copy of this process could find it held for ever.
    static PROCESSORS: AtomicUsize = AtomicUsize::new(0);
    if PROCESSORS.load(Relaxed) == 0 {
        let count = thread::available_parallelism().map_or(1, NonZero::get);
        PROCESSORS.store(count, Relaxed);
    }
    NEXT.fetch_add(1, Relaxed) % STRIPES.min(PROCESSORS.load(Relaxed))
}

/// A string of C, as a name: at most [`NAME_MAX`] bytes of it, and no control characters.
///
/// # Safety
///
/// It is null or a string of C.
unsafe fn name(string: *const c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    let mut bytes = Vec::new();
    for at in 0..NAME_MAX {
        // SAFETY: not behind the closing zero, by the caller's promise.
        let byte = unsafe { string.add(at).read() }.cast_unsigned();
        if byte == 0 {
            break;
        }
        bytes.push(byte);
    }
    let plain = |c: char| if c.is_control() { '_' } else { c };
    let mut name: String = String::from_utf8_lossy(&bytes).chars().map(plain).collect();
    // What stands for bytes that were no text is longer than they were.
    while name.len() > NAME_MAX {
        name.pop();
    }
    Some(name)
}

/// The data of a call; empty if there is none.
///
/// # Safety
///
/// `data` is null or has `size` bytes, for as long as the result is in use.
#[inline]
unsafe fn buffer<'a>(data: *const c_char, size: i32) -> &'a [u8] {
    match usize::try_from(size) {
        // SAFETY: the caller's promise.
        Ok(size) if !data.is_null() => unsafe { slice::from_raw_parts(data.cast(), size) },
        _ => &[],
    }
}
