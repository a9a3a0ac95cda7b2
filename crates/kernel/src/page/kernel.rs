//! The kernel's own page: loads the programs that write it.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libbpf_rs::{Iter, Link, MapCore, MapHandle, Object};

use super::mapping::Mapping;
use crate::bpf::{self, BpfError, Programs, failed_to, failed_to_load};
use crate::record::{BadRecord, CPU, CPUS, MAX_CPUS, PORTS, Record};

/// Bytes of the page. Only as many as there are CPUs are in use.
const PAGE: usize = CPUS + MAX_CPUS * CPU;
/// Maps and links by which a page goes on without the process that loaded it.
const TIMER: &str = "page-timer";
const MAP: &str = "page";
const LINKS: [&str; 2] = ["evk_switched", "evk_state"];
/// Time limit for the first record: a thousand times the time that it takes.
const FIRST: Duration = Duration::from_secs(10);

/// The kernel's page, kept current by the kernel as long as this lives, or as it is
/// [pinned](KernelPage::pin_to).
pub struct KernelPage {
    mapping: Arc<Mapping>,
    loaded: Option<(Object, Vec<Link>)>,
}

impl KernelPage {
    /// Loads the programs and waits for the first record. `ports` are those whose listen
    /// backlogs are told, in the network namespace of this process.
    ///
    /// # Errors
    ///
    /// The kernel lacks a feature, or the process a right.
    pub fn load(ports: &[u16]) -> Result<Self, BpfError> {
        let epoch = random()?;
        let object =
            bpf::load_programs(|| bpf::open_programs(crate::bpf_object!("page.bpf.o")), 0)?;
        let object = object.map_err(failed_to_load(Programs::Monitor))?;
        bpf::discover(&object, epoch)?;
        let plan = plan(ports)?;
        bpf::update_map(&object, "evk_plan", &0u32.to_ne_bytes(), &plan)?;
        for (place, port) in ports.iter().enumerate() {
            let place = (place as u32).to_ne_bytes();
            bpf::update_map(&object, "evk_ports", &port.to_ne_bytes(), &place)?;
        }
        bpf::run(&object, "evk_place", None)?;
        let mut links = Vec::new();
        for program in object.progs_mut() {
            let listening = program.name() == "evk_listening";
            if !listening && !LINKS.iter().any(|link| program.name() == *link) {
                continue;
            }
            let link = program
                .attach()
                .map_err(failed_to("attach the page's programs"))?;
            if !listening {
                links.push(link);
                continue;
            }
            // Reading it runs it, once for each socket. It prints nothing.
            let mut all = Iter::new(&link).map_err(failed_to("look at sockets"))?;
            let looked = io::copy(&mut all, &mut io::sink());
            looked.map_err(|error| BpfError::Refused("look at sockets", error.to_string()))?;
        }
        if bpf::run(&object, "evk_start", None)? != 0 {
            return Err(BpfError::Refused("start a BPF timer", "no timer".into()));
        }
        let map = bpf::find_map(&object, "evk_page")?;
        let page = KernelPage {
            mapping: map_page(map.as_fd())?,
            loaded: None,
        };
        page.wait()?;
        Ok(KernelPage {
            loaded: Some((object, links)),
            ..page
        })
    }

    /// Makes the kernel go on when this process has ended: what is needed is put into a folder
    /// in a BPF file system, from where [`KernelPage::open_pinned`] has it.
    ///
    /// # Errors
    ///
    /// There is one already, or no right to it.
    pub fn pin_to(&mut self, folder: &Path) -> Result<(), BpfError> {
        bpf::pin_folder(folder)?;
        let Some((object, links)) = &mut self.loaded else {
            return Ok(());
        };
        for mut map in object.maps_mut() {
            // A timer runs as long as somebody outside the kernel holds its map.
            let name = match map.name().to_str() {
                Some("evk_page") => MAP,
                Some("evk_alarm") => TIMER,
                _ => continue,
            };
            map.pin(folder.join(name))
                .map_err(failed_to("pin the page"))?;
        }
        for (link, name) in links.iter_mut().zip(LINKS) {
            link.pin(folder.join(name))
                .map_err(failed_to("pin the page"))?;
        }
        Ok(())
    }

    /// Removes what [`KernelPage::pin_to`] has made. The page ends when nobody holds it any more.
    ///
    /// # Errors
    ///
    /// The system's. That there is nothing is none.
    pub fn remove_pins(folder: &Path) -> Result<(), BpfError> {
        for name in LINKS.into_iter().chain([MAP, TIMER]) {
            let path = folder.join(name);
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    let path = path.display();
                    return Err(BpfError::File(format!("cannot remove {path}: {error}")));
                }
            }
        }
        // Others may have something there.
        let _ = fs::remove_dir(folder);
        Ok(())
    }

    /// A page that is pinned in a folder.
    ///
    /// # Errors
    ///
    /// There is none, or no right to it.
    pub fn open_pinned(folder: &Path) -> Result<Self, BpfError> {
        let path = folder.join(MAP);
        if !path.exists() {
            let path = path.display();
            return Err(BpfError::File(format!("no kernel load page at {path}")));
        }
        let map = MapHandle::from_pinned_path(&path).map_err(failed_to("open the pinned page"))?;
        let page = KernelPage {
            mapping: map_page(map.as_fd())?,
            loaded: None,
        };
        page.wait()?;
        Ok(page)
    }

    /// The memory, for who offers it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn wait(&self) -> Result<(), BpfError> {
        let limit = Instant::now() + FIRST;
        loop {
            let mut bytes = vec![0; self.mapping.used_length()];
            self.mapping.copy(&mut bytes);
            match Record::parse(&bytes) {
                Ok(_) => return Ok(()),
                Err(BadRecord::Magic | BadRecord::Torn) if Instant::now() < limit => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    return Err(BpfError::Refused("write a load page", error.to_string()));
                }
            }
        }
    }
}

fn map_page(fd: std::os::fd::BorrowedFd<'_>) -> Result<Arc<Mapping>, BpfError> {
    let mapping = Mapping::new(fd, PAGE);
    let mapping = mapping.map_err(|error| BpfError::Refused("map a load page", error.to_string()));
    Ok(Arc::new(mapping?))
}

fn random() -> Result<u64, BpfError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| BpfError::File(format!("the system gives no random numbers: {error}")))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// `struct evk_plan`: the CPUs that are on get an entry each, by their numbers.
fn plan(ports: &[u16]) -> Result<Vec<u8>, BpfError> {
    const NOWHERE: u32 = u32::MAX;
    let path = "/sys/devices/system/cpu/online";
    let text =
        fs::read_to_string(path).map_err(|error| BpfError::File(format!("{path}: {error}")))?;
    let online = online(&text);
    let online = online.ok_or_else(|| {
        BpfError::File(format!("{path} has an unknown format: {:?}", text.trim()))
    })?;
    if ports.len() > PORTS {
        let many = ports.len();
        return Err(BpfError::File(format!(
            "{many} listen ports were given, and a load record has room for {PORTS}"
        )));
    }
    let mut slots = vec![NOWHERE; MAX_CPUS];
    for (slot, cpu) in online.iter().enumerate() {
        *slots.get_mut(*cpu).ok_or(BpfError::Cpus(*cpu + 1))? = slot as u32;
    }
    let mut plan = vec![0; 8];
    plan.extend((online.len() as u32).to_ne_bytes());
    plan.extend((ports.len() as u32).to_ne_bytes());
    let filled = ports
        .iter()
        .copied()
        .chain(std::iter::repeat(0))
        .take(PORTS);
    plan.extend(filled.flat_map(u16::to_ne_bytes));
    plan.extend(slots.iter().flat_map(|slot| slot.to_ne_bytes()));
    plan.extend([0; MAX_CPUS * 4]);
    Ok(plan)
}

/// The numbers in a list like `0-3,5`.
fn online(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests;
