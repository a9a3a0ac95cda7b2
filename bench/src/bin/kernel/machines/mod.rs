//! Value of known loads where back-ends are whole machines: a front-end and [`BACKENDS`] back-ends, each emulated with
//! Debian's kernel, and a cable from the front-end to each back-end.
//!
//! So there are pending interrupts, which no cgroup has, and RDMA (Soft-RoCE). On each machine the
//! first process is this same program: [`back`] and [`front`]. The front-end has clients of its own,
//! and decides with the product's group and strategy by loads that it reads itself. What it measures
//! it prints on its console.
//!
//! A request costs CPU time by the clock of the machine that serves it, so emulated processors
//! have the same capacity however fast this machine emulates them.

mod back;
mod front;

use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use evenkeel_e2e::vm::{End, Image, Machine};

use super::table::{Table, Verdict};
use super::{Result, Run, ground, helper};

/// Back-ends. With the front-end they are as many machines as two processors can emulate.
const BACKENDS: u8 = 2;
/// Ports of a back-end: what the front-end tells it to do, the kernel's page and the helper's over RDMA,
/// and the helper's answers. The kernel answers at its usual port.
const CONTROL: u16 = 9980;
const KERNEL_PAGE: u16 = 9981;
const HELPER_PAGE: u16 = 9982;
const HELPER: u16 = 9983;
/// Interval at which loads are read, and at which a helper writes its page.
const INTERVAL: Duration = Duration::from_millis(50);
/// A key that all machines share.
const SECRET: [u8; 16] = [0x5a; 16];
/// Prefix of the front-end's lines with a result.
const ROW: &str = "ROW ";
const HEAD: &str = "scene,arm,round,figure,value";
/// Longest time of the whole run.
const LIMIT: Duration = Duration::from_secs(28 * 60);

/// Addresses of the front-end and of the back-end at their cable.
fn addresses(cable: u8) -> (Ipv4Addr, Ipv4Addr) {
    let address = |end| Ipv4Addr::new(10, 78, cable, end);
    (address(1), address(2))
}

/// Gives an interface its address, and a device for RDMA.
fn set_up(interface: u8, address: Ipv4Addr) -> Result<()> {
    let (name, device) = (format!("eth{interface}"), format!("rxe{}", interface + 1));
    for words in [
        format!("link set {name} up"),
        format!("address add {address}/24 dev {name}"),
    ] {
        ground::run("ip", words.split(' '))?;
    }
    let words = format!("link add {device} type rxe netdev {name}");
    ground::run("rdma", words.split(' '))?;
    Ok(())
}

/// The first process of a back-end.
pub(crate) fn run_back_end(cable: u64) -> io::Result<()> {
    back::run(cable as u8).map_err(|error| io::Error::other(error.to_string()))
}

/// The first process of the front-end.
pub(crate) fn run_front_end(rounds: &str, millis: &str) -> io::Result<()> {
    let millis = helper::number(millis)?;
    let done = front::run(helper::number(rounds)?, Duration::from_millis(millis));
    done.map_err(|error| io::Error::other(error.to_string()))
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Verdict>> {
    let program = std::env::current_exe()?;
    let image = Image::build(&[&program, &run.evenkeel])?;
    println!("the machines' image is built");
    let (rounds, millis) = run.scale((4, 5000), (1, 2000));
    let cables: Vec<[End; 2]> = (0..BACKENDS).map(|cable| image.cable(cable)).collect();
    let boot = |words: &[&str], ends: &[End]| {
        let command = [&["kernel", helper::WORD], words].concat();
        image.boot(&command, 1, ends)
    };
    let mut backends: Vec<Machine> = Vec::new();
    for (cable, [_, end]) in cables.iter().enumerate() {
        let words = ["back-end", &cable.to_string()];
        backends.push(boot(&words, std::slice::from_ref(end))?);
    }
    let ends: Vec<End> = cables.iter().map(|[end, _]| end.clone()).collect();
    let words = ["front-end", &rounds.to_string(), &millis.to_string()];
    let mut front = boot(&words, &ends)?;
    let until = Instant::now() + LIMIT;
    let mut csv = format!("{HEAD}\n");
    while let Some(line) = front.next_line(until) {
        match line.strip_prefix(ROW) {
            Some(row) => {
                csv.push_str(row);
                csv.push('\n');
            }
            None => println!("front-end: {line}"),
        }
    }
    run.write("machines.csv", &csv)?;
    let front = front.outcome();
    if front.code != Some(0) {
        // Their last words tell why, most of the time.
        for backend in &mut backends {
            backend.wait_for_end(Instant::now() + Duration::from_secs(1));
        }
        let mut said = format!("the front-end did not come to its end:\n{}", front.console);
        for backend in backends {
            write!(said, "\na back-end:\n{}", backend.outcome().console)?;
        }
        return Err(said.into());
    }
    let table = means(&csv);
    println!("{table}");
    run.write("machines.md", &table)?;
    // Who wants verdicts asks the lab for them.
    Ok(Vec::new())
}

/// The mean of each figure over the rounds.
fn means(csv: &str) -> String {
    let mut sums: Vec<(Vec<&str>, f64, u32)> = Vec::new();
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let [scene, arm, _, figure, value] = cells[..] else {
            continue;
        };
        let (key, value) = (vec![scene, arm, figure], value.parse().unwrap_or(f64::NAN));
        match sums.iter_mut().find(|(known, ..)| *known == key) {
            Some((_, sum, count)) => {
                *sum += value;
                *count += 1;
            }
            None => sums.push((key, value, 1)),
        }
    }
    let mut table = Table::new(&["scene", "arm", "figure", "mean", "rounds"]);
    for (key, sum, count) in sums {
        let cells = key.into_iter().map(str::to_owned);
        let mean = format!("{:.3}", sum / f64::from(count));
        table.add_row(cells.chain([mean, count.to_string()]));
    }
    table.text().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_means() {
        let text = means("h\na,b,0,c,1\na,b,1,c,2\na,b,0,d,5\nnone\n");
        assert!(text.contains("1.500") && text.contains("5.000"), "{text}");
    }
}
