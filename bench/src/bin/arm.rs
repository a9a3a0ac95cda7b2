//! Cost of a transaction for a server: `arm_start` and `arm_stop` of libarm, with a client and a queueing time given,
//! on 1 to N threads of one process.
//!
//! The library is loaded as a server loads it, and its page is in memory that an agent
//! could read. A round is a fixed number of transactions for each thread; printed is the
//! median over rounds of what one takes, in wall time and in CPU time. `floor` is the same
//! loop with two readings of the clock, which no library that measures can save.
//!
//! `arm [--library target/dist/libarm.so] [--threads N] [--rounds N]`

use std::ffi::{CString, c_char, c_void};
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use clap::Parser;

#[derive(Parser)]
struct Options {
    /// The library to measure.
    #[arg(long, default_value = "target/dist/libarm.so")]
    library: PathBuf,
    /// Most threads; default: one for each processor.
    #[arg(long)]
    threads: Option<usize>,
    /// Rounds for each number of threads.
    #[arg(long, default_value_t = 21)]
    rounds: usize,
}

const TRANSACTIONS: u32 = 200_000;

type Init = unsafe extern "C" fn(*const c_char, *const c_char, i32, *const c_char, i32) -> i32;
type GetId =
    unsafe extern "C" fn(i32, *const c_char, *const c_char, i32, *const c_char, i32) -> i32;
type Start = unsafe extern "C" fn(i32, i32, *const c_char, i32) -> i32;
type Stop = unsafe extern "C" fn(i32, i32, i32, *const c_char, i32) -> i32;

/// `arm_user_data1`, as far as the library reads it.
#[repr(C)]
struct Values {
    format: i32,
    flags: [u8; 4],
    metric: [u64; 6],
}

/// Structure `arm_user_data101` of ARM, as far as the library reads it.
#[repr(C)]
struct Definitions {
    format: i32,
    flags: [u8; 4],
    metric: [Definition; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Definition {
    kind: i32,
    name: [u8; 44],
}

#[derive(Clone, Copy)]
struct Library {
    class: i32,
    start: Start,
    stop: Stop,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let pages = PathBuf::from(format!("/dev/shm/evenkeel-arm-{}", std::process::id()));
    std::fs::create_dir(&pages)?;
    // SAFETY: there is no other thread yet.
    unsafe { std::env::set_var("EVENKEEL_ARM_DIR", &pages) };
    let library = Library::load(&options.library);
    // The library has its page, and needs its name no more.
    std::fs::remove_dir_all(&pages)?;
    let library = library?;
    let processors = thread::available_parallelism()?.get();
    println!("threads  wall ns  CPU ns  floor: wall ns  CPU ns");
    for threads in 1..=options.threads.unwrap_or(processors) {
        let mut pairs = Vec::new();
        let mut floors = Vec::new();
        for _ in 0..options.rounds {
            pairs.push(round(threads, |values| library.transaction(values)));
            floors.push(round(threads, |_| {
                std::hint::black_box((Instant::now(), Instant::now()));
            }));
        }
        let (pair, floor) = (Cost::median(pairs), Cost::median(floors));
        println!(
            "{threads:7}  {:7.1}  {:6.1}  {:14.1}  {:6.1}",
            pair.wall, pair.cpu, floor.wall, floor.cpu
        );
    }
    Ok(())
}

impl Library {
    fn load(path: &std::path::Path) -> Result<Self, Box<dyn std::error::Error>> {
        let file = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: the library has no constructors that could misbehave.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            return Err(format!(
                "{}: cannot load it; build it with `make arm`",
                path.display()
            )
            .into());
        }
        let symbol = |name: &std::ffi::CStr| -> Result<*mut c_void, String> {
            // SAFETY: the handle is that of a loaded library.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if symbol.is_null() {
                Err(format!("{name:?} is missing"))
            } else {
                Ok(symbol)
            }
        };
        // SAFETY: the functions have the signatures that the standard gives them.
        let (init, getid, start, stop) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Init>(symbol(c"arm_init")?),
                std::mem::transmute::<*mut c_void, GetId>(symbol(c"arm_getid")?),
                std::mem::transmute::<*mut c_void, Start>(symbol(c"arm_start")?),
                std::mem::transmute::<*mut c_void, Stop>(symbol(c"arm_stop")?),
            )
        };
        let none = Definition {
            kind: 0,
            name: [0; 44],
        };
        let mut definitions = Definitions {
            format: 101,
            flags: [0, 0xc0, 0, 0],
            metric: [none; 7],
        };
        for (metric, (kind, name)) in definitions
            .metric
            .iter_mut()
            .zip([(8, "Client"), (5, "Queueing time (us)")])
        {
            metric.kind = kind;
            metric.name[..name.len()].copy_from_slice(name.as_bytes());
        }
        // SAFETY: strings of C, and a buffer of the size that is given.
        let class = unsafe {
            let application = init(
                c"evenkeel-bench".as_ptr(),
                c"*".as_ptr(),
                0,
                std::ptr::null(),
                0,
            );
            getid(
                application,
                c"transaction".as_ptr(),
                std::ptr::null(),
                0,
                (&raw const definitions).cast(),
                size_of::<Definitions>() as i32,
            )
        };
        if class <= 0 {
            return Err("arm_getid failed".into());
        }
        Ok(Self { class, start, stop })
    }

    #[inline]
    fn transaction(&self, values: &Values) {
        // SAFETY: a buffer of the size that is given.
        unsafe {
            let data = (&raw const *values).cast();
            let handle = (self.start)(self.class, 0, data, size_of::<Values>() as i32);
            (self.stop)(handle, 0, 0, std::ptr::null(), 0);
        }
    }
}

/// Nanoseconds for one transaction.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

impl Cost {
    fn median(costs: Vec<Cost>) -> Cost {
        let middle = |of: fn(&Cost) -> f64| {
            let mut all: Vec<_> = costs.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Cost {
            wall: middle(|cost| cost.wall),
            cpu: middle(|cost| cost.cpu),
        }
    }
}

/// All threads at once: what one transaction takes a thread.
fn round(threads: usize, transaction: impl Fn(&Values) + Sync) -> Cost {
    let barrier = Barrier::new(threads);
    let work = |client: u64| {
        let mut values = Values {
            format: 1,
            flags: [0, 0xc0, 0, 0],
            metric: [0, 250, 0, 0, 0, 0],
        };
        barrier.wait();
        let (start, cpu) = (Instant::now(), cpu());
        for turn in 0..TRANSACTIONS {
            // Some hundred clients come back again and again.
            values.metric[0] = client << 32 | u64::from(turn % 256);
            transaction(&values);
        }
        (start.elapsed(), self::cpu() - cpu)
    };
    let times: Vec<_> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..threads as u64)
            .map(|n| scope.spawn(move || work(n)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok())
            .collect()
    });
    let all = times.len() as f64 * f64::from(TRANSACTIONS);
    Cost {
        wall: times
            .iter()
            .map(|(wall, _)| wall.as_nanos() as f64)
            .sum::<f64>()
            / all,
        cpu: times.iter().map(|(_, cpu)| cpu).sum::<f64>() / all,
    }
}

/// CPU time of the calling thread, in nanoseconds.
fn cpu() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
