//! `evenkeel kernel detach --forwarding`.

use std::thread;
use std::time::Duration;

use evenkeel_kernel::forward::{Detachment, Removed};
use evenkeel_net::clock::monotonic_nanos;

use crate::cli::kernel::Detach;
use crate::failure::Failure;
use crate::output::print;
use crate::plural::format_count;

/// Time without a packet after which a connection is no longer waited for.
const IDLE: Duration = Duration::from_secs(600);

/// Time between two looks at the connections.
const LOOK: Duration = Duration::from_millis(500);

/// Removes the programs that forward connections.
pub(super) fn detach(args: &Detach) -> Result<(), Failure> {
    let found = Detachment::find().map_err(Failure::of)?;
    for folder in found.other_namespaces() {
        print(format!(
            "not removed: {} belongs to another network namespace: run this command there, or remove the folder if the \
             namespace is gone\n",
            folder.display()
        ))?;
    }
    if found.is_empty() {
        return print(
            "nothing to remove: no program forwards connections in this network namespace\n".into(),
        );
    }
    if args.now {
        let open = found.close().map_err(Failure::of)?;
        return finish(
            found,
            &format!("cut {}; ", format_count(open, "connection")),
        );
    }
    let uncounted: Vec<_> = found.list_uncounted().into_iter().collect();
    if !uncounted.is_empty() {
        return Err(Failure::new(format!(
            "the program on {} has no tables in /sys/fs/bpf/evenkeel, so its connections cannot be counted: use --now to \
             remove the program and cut its connections",
            uncounted.join(", ")
        )));
    }
    wait_for_connections(&found, args.idle_timeout.unwrap_or(IDLE))?;
    finish(found, "")
}

/// Waits until the kernel has no connection, and says how many are left whenever the number changes.
fn wait_for_connections(found: &Detachment, idle: Duration) -> Result<(), Failure> {
    let mut reported = None;
    loop {
        let (open, closed) = found.drain(monotonic_nanos(), idle).map_err(Failure::of)?;
        if reported.is_none() {
            print("no new connections begin in the kernel\n".into())?;
        }
        if reported != Some(open) {
            print(match open {
                0 => "no connection is left in the kernel\n".into(),
                _ => format!("waiting for {}\n", format_count(open, "connection")),
            })?;
            reported = Some(open);
        }
        if open + closed == 0 {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

fn finish(found: Detachment, before: &str) -> Result<(), Failure> {
    let Removed {
        interfaces,
        folders,
    } = found.remove().map_err(Failure::of)?;
    let interfaces: Vec<_> = interfaces.into_iter().collect();
    let interfaces = match interfaces.len() {
        0 => "no interface had the program".to_owned(),
        _ => format!("removed the program from {}", interfaces.join(", ")),
    };
    let folders: Vec<_> = folders.iter().map(|at| at.display().to_string()).collect();
    let folders = match folders.len() {
        0 => "there were no tables".to_owned(),
        _ => format!("removed {}", folders.join(", ")),
    };
    print(format!("{before}{interfaces}; {folders}\n"))
}
