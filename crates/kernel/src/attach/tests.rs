use proptest::prelude::*;

use super::config::CONFIG;
use super::*;
use crate::query::{Answer, Query, SHORT, WITH_PORTS};
use crate::record::{Available, Base};

#[test]
fn networks_are_read_and_written() {
    for (text, written) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("::1", "::1/128"),
        ("::/0", "::/0"),
    ] {
        let network: Network = text.parse().unwrap();
        assert_eq!(network.to_string(), written);
        assert_eq!(Network::from_prefix(&network.prefix()), Some(network));
    }
    for text in [
        "",
        "10.0.0.0/33",
        "::/129",
        "10.0.0/8",
        "a/8",
        "10.0.0.0/",
        "1.2.3.4/-1",
    ] {
        assert!(text.parse::<Network>().is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn a_configuration_is_read_as_it_was_written(
        words in any::<[u32; 4]>(), made_qdisc: bool, port: u16, longs in any::<[u64; 4]>(),
        ports in proptest::collection::vec(any::<u16>(), 0..=PORTS),
    ) {
        let [mode, interface, priority, handle] = words;
        let [interval_ns, burst_ns, namespace, updates] = longs;
        let config = Config {
            mode, interface, made_qdisc, priority, handle, port, ports,
            interval_ns, burst_ns, namespace, updates,
        };
        prop_assert_eq!(Config::read(&config.write()), Some(config));
    }
}

/// CPUs that keep entries for themselves leave as many as the map must hold: with 4,096 in all,
/// 32 CPUs would leave none.
#[test]
fn s22_every_cpu_may_keep_entries_for_itself() {
    for (_, held) in RECENT {
        for cpus in [1, 2, 32, 128, 512] {
            let all = entries(held, cpus);
            assert!(all - cpus as u32 * 128 >= held);
            assert!(all <= held + (1 << 16), "and memory has a bound");
        }
        assert_eq!(entries(held, usize::MAX), u32::MAX);
    }
    let object = match open(Path::new("/sys/fs/bpf/nowhere")) {
        Ok(object) => object,
        Err(error @ BpfError::NoBtf(_)) => {
            crate::testing::report_skipped(error);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    for (name, held) in RECENT {
        let map = object.maps().find(|map| map.name() == name).unwrap();
        assert_eq!(map.max_entries(), entries(held, cpus), "{name}");
    }
}

#[test]
fn a_configuration_of_another_version_is_none() {
    assert_eq!(Config::read(&[7; CONFIG]), None);
    assert_eq!(Config::read(&[0; CONFIG - 8]), None);
}

/// The kernel may have no memory for a timer at one moment, and have it at the next.
#[test]
fn a_timer_is_asked_for_until_there_is_memory() {
    let mut asked = 0;
    let in_the_end = start(&mut request(0, 0), |_| {
        asked += 1;
        Ok(i32::from(asked < 4))
    });
    assert!(in_the_end.is_ok() && asked == 4, "{asked}");
    let mut asked = 0;
    let never = start(&mut request(0, 0), |_| {
        asked += 1;
        Ok(1)
    });
    assert_eq!(asked, TIMER_TRIES);
    let said = never.unwrap_err().to_string();
    assert!(said.contains("cannot be started"), "{said}");
}

/// The responder's programs for a machine with so many CPUs, which nobody sends packets to. It has
/// as many numbers for CPUs as it takes, each of which is one of this machine's. None if this user
/// may not load it.
fn responder(cpus: u32, direct: bool) -> Option<(Object, Key)> {
    let mut object = match bpf::open_programs(crate::bpf_object!("respond.bpf.o")) {
        Ok(object) => object,
        Err(error) => {
            crate::testing::report_skipped(error);
            return None;
        }
    };
    for mut map in object.maps_mut() {
        if map.name() == GLANCES {
            map.set_max_entries(2 * u32::from(TARGETS) * cpus).unwrap();
        }
    }
    bpf::configure_programs(&mut object, direct, 0).unwrap();
    let object = match object
        .load()
        .map_err(bpf::failed_to("load the BPF programs"))
    {
        Ok(object) => object,
        Err(error @ BpfError::Rights(_)) if !rustix::process::geteuid().is_root() => {
            crate::testing::report_skipped(error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    bpf::discover(&object, 1).unwrap();
    let zero = 0u32.to_ne_bytes();
    let bases = find_map(&object, "evk_bases").unwrap();
    let own = libbpf_rs::num_possible_cpus().unwrap() as u32;
    for cpu in own..cpus {
        let base = bases.lookup(&(cpu % own).to_ne_bytes(), MapFlags::ANY);
        bpf::update_map(
            &object,
            "evk_bases",
            &cpu.to_ne_bytes(),
            &base.unwrap().unwrap(),
        )
        .unwrap();
    }
    let facts = find_map(&object, "evk_facts").unwrap();
    let mut facts = facts.lookup(&zero, MapFlags::ANY).unwrap().unwrap();
    facts[8..12].copy_from_slice(&cpus.to_ne_bytes());
    bpf::update_map(&object, "evk_facts", &zero, &facts).unwrap();
    let key = Key::parse("000102030405060708090a0b0c0d0e0f").unwrap();
    let config = Config {
        mode: Mode::Native as u32,
        interface: 0,
        made_qdisc: false,
        priority: 0,
        handle: 0,
        port: 9970,
        ports: Vec::new(),
        interval_ns: 1,
        burst_ns: 1_000_000_000,
        namespace: 0,
        updates: 0,
    };
    write(&object, &config).unwrap();
    secrets(&object, std::slice::from_ref(&key)).unwrap();
    hosts(&object, &[Host::from_name("it")]).unwrap();
    sources(&object, &["10.0.0.0/8".parse().unwrap()]).unwrap();
    start(&mut request(0, 0), |context| {
        bpf::run(&object, "evk_start", Some(context))
    })
    .unwrap();
    assert!(made(&object, 0).unwrap(), "the timer makes a record");
    Some((object, key))
}

/// Asks it: the answer, and how long the program took.
fn ask(object: &Object, key: &Key, length: usize, number: u64) -> (Vec<u8>, Duration) {
    let query = Query {
        length: length as u16,
        target: 0,
        first_cpu: 0,
        reader: 7,
        number,
        host: Host::from_name("it"),
    };
    trial::run_query(object, 9970, "10.0.0.1".parse().unwrap(), &query, key).unwrap()
}

/// Returns the ways to load the program: with and without direct reads. Kernels before 6.2 load the
/// program without them.
fn ways() -> Vec<bool> {
    match bpf::has_rdonly_cast() {
        true => vec![true, false],
        false => vec![false],
    }
}

/// The cost of a query does not grow with the machine: of many CPUs it looks at eight. They are
/// counted: each glance of the timer is made a million tasks less, and what is looked at again is
/// found to have so many more.
#[test]
fn a_query_looks_at_no_more_than_eight_cpus() {
    const LESS: u32 = 1_000_000;
    for direct in ways() {
        for (cpus, looked_at) in [(2, 2), (8, 8), (9, 8), (16, 8), (64, 8), (512, 8)] {
            let Some((object, key)) = responder(cpus, direct) else {
                return;
            };
            let (answer, _) = ask(&object, &key, SHORT, 1);
            let answer = Answer::parse(&answer, &key).unwrap();
            assert_eq!(answer.record.base.cpus, cpus);
            assert_eq!(answer.record.base.capacity, cpus * 1000);
            // Nothing is made any more.
            bpf::run(&object, "evk_stop", Some(&mut request(0, 0))).unwrap();
            let mut scope = find_map(&object, "evk_targets")
                .unwrap()
                .lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
                .unwrap()
                .unwrap();
            scope[..4].copy_from_slice(&1u32.to_ne_bytes());
            bpf::update_map(&object, "evk_targets", &0u32.to_ne_bytes(), &scope).unwrap();
            let glances = find_map(&object, GLANCES).unwrap();
            for place in 0..2 * cpus {
                let place = place.to_ne_bytes();
                let mut glance = glances.lookup(&place, MapFlags::ANY).unwrap().unwrap();
                let running = u32::from_ne_bytes(*glance[24..].first_chunk().unwrap());
                let less = running.wrapping_sub(LESS);
                glance[24..28].copy_from_slice(&less.to_ne_bytes());
                glances.update(&place, &glance, MapFlags::ANY).unwrap();
            }
            let (answer, _) = ask(&object, &key, SHORT, 2);
            let answer = Answer::parse(&answer, &key).unwrap();
            let more = answer.record.base.totals.running;
            assert_eq!((more + LESS / 2) / LESS, looked_at, "of {cpus} CPUs");
        }
    }
}

/// On a machine with many CPUs the time of a record is one at which it is true: it never goes back,
/// and neither does any sum; and over a while the busy time is that of its CPUs.
#[test]
fn records_of_many_cpus_are_true_of_their_time() {
    for direct in ways() {
        let (Some((few, few_key)), Some((many, many_key))) =
            (responder(2, direct), responder(64, direct))
        else {
            return;
        };
        let base = |object: &Object, key: &Key, number| {
            let (answer, _) = ask(object, key, SHORT, number);
            Answer::parse(&answer, key).unwrap().record.base
        };
        let mut number = 1;
        let mut both = || {
            number += 1;
            (base(&few, &few_key, number), base(&many, &many_key, number))
        };
        let (first, first_of_many) = both();
        let (mut last, mut last_of_many) = (first, first_of_many);
        while last.time_ns - first.time_ns < 500_000_000 {
            let before = last_of_many;
            (last, last_of_many) = both();
            let now = last_of_many;
            assert!(now.time_ns > before.time_ns, "its time goes on");
            assert!(now.totals.busy_ns >= before.totals.busy_ns);
            assert!(now.totals.switches >= before.totals.switches);
        }
        if libbpf_rs::num_possible_cpus().unwrap() != 2 {
            continue; // The CPUs of the two are not the same.
        }
        let share = |first: &Base, last: &Base| {
            let busy = (last.totals.busy_ns - first.totals.busy_ns) as f64;
            busy / (last.time_ns - first.time_ns) as f64 / f64::from(last.cpus)
        };
        let (of_few, of_many) = (share(&first, &last), share(&first_of_many, &last_of_many));
        assert!((of_few - of_many).abs() < 0.1, "{of_few} and {of_many}");
    }
}

/// Whoever asks again is found in one entry, without the lists; and whoever asks otherwise, in the lists.
#[test]
fn a_source_that_has_asked_before_is_known() {
    let Some((object, key)) = responder(2, bpf::has_rdonly_cast()) else {
        return;
    };
    let known = || find_map(&object, KNOWN).unwrap().keys().count();
    assert_eq!(known(), 0);
    ask(&object, &key, SHORT, 1);
    assert_eq!(known(), 1);
    let query = |number, host| Query {
        length: SHORT as u16,
        target: 0,
        first_cpu: 0,
        reader: 7,
        number,
        host: Host::from_name(host),
    };
    let is_answered = |source: &str, query: Query, key: &Key| {
        trial::run_query(&object, 9970, source.parse().unwrap(), &query, key).is_ok()
    };
    // With another name and another key.
    let second = Key::parse("2:000102030405060708090a0b0c0d0e0f").unwrap();
    secrets(&object, &[key.clone(), second.clone()]).unwrap();
    hosts(&object, &[Host::from_name("it"), Host::from_name("also")]).unwrap();
    assert!(is_answered("10.0.0.1", query(2, "also"), &key));
    assert!(is_answered("10.0.0.1", query(3, "also"), &second));
    assert!(
        !is_answered("10.0.0.1", query(3, "it"), &key),
        "it is an old number"
    );
    assert!(!is_answered("10.0.0.1", query(4, "nobody"), &key));
    assert!(
        !is_answered("11.0.0.1", query(5, "it"), &key),
        "the source is not allowed"
    );
    assert_eq!(known(), 1);
    for list in ["evk_keys", "evk_hosts", "evk_allow4"] {
        replace(&object, list, &[]).unwrap();
    }
    assert!(is_answered("10.0.0.1", query(6, "it"), &key));
    assert!(!is_answered("10.0.0.1", query(7, "also"), &key));
    assert!(!is_answered("10.0.0.1", query(8, "it"), &second));
    let wrong = Key::parse("100102030405060708090a0b0c0d0e0f").unwrap();
    assert!(!is_answered("10.0.0.1", query(9, "it"), &wrong));
    assert!(!is_answered("10.0.0.2", query(10, "it"), &key));
    // As after a trial.
    replace(&object, KNOWN, &[]).unwrap();
    assert!(!is_answered("10.0.0.1", query(11, "it"), &key));
}

/// However long ago the last query was, a record has the busy time of the last two ticks of the timer.
#[test]
fn a_record_has_the_busy_time_of_the_moment() {
    for direct in ways() {
        for cpus in [2, 64] {
            let Some((object, key)) = responder(cpus, direct) else {
                return;
            };
            let mut number = 0;
            let base = loop {
                number += 1;
                let (answer, _) = ask(&object, &key, SHORT, number);
                let base = Answer::parse(&answer, &key).unwrap().record.base;
                // From the second tick on.
                if base.available.has_all(Available::RECENT) {
                    break base;
                }
                assert!(number < 2000, "the timer ticks");
                std::thread::sleep(TIMER_PAUSE);
            };
            let (busy, passed) = (base.recent_busy_ns, u64::from(base.recent_ns));
            // A machine that stands still ticks late.
            assert!((9_000_000..=1_100_000_000).contains(&passed), "{passed} ns");
            assert!(
                busy <= passed * u64::from(cpus) * 3 / 2,
                "{busy} ns in {passed}"
            );
        }
    }
}

#[test]
fn pins_of_older_versions_are_removed() {
    let folder = std::env::temp_dir().join(format!("evenkeel-pins-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["evk_sources", "evk_config", "other"] {
        std::fs::write(folder.join(name), "").unwrap();
    }
    let left = || std::fs::read_dir(&folder).unwrap().count();
    remove_old_pins(&folder).unwrap();
    assert_eq!(left(), 2);
    remove_old_pins(&folder).unwrap();
    std::fs::write(folder.join("evk_sources"), "").unwrap();
    clear(&folder).unwrap();
    assert_eq!(left(), 1, "what is not ours stays");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Prints the nanoseconds that the program takes for a query on machines with so many CPUs, which
/// take turns: half of the runs, and a quarter at each end.
fn costs(machines: &[u32], queries: usize) {
    for direct in ways() {
        for length in [SHORT, WITH_PORTS] {
            let machines: Vec<_> = machines
                .iter()
                .filter_map(|cpus| Some((cpus, responder(*cpus, direct)?)))
                .collect();
            let mut took = vec![Vec::new(); machines.len()];
            let mut number = 1;
            for _ in 0..queries {
                for ((_, (object, key)), took) in machines.iter().zip(&mut took) {
                    number += 1;
                    took.push(ask(object, key, length, number).1);
                }
            }
            let read = if direct { "direct" } else { "probe" };
            for ((cpus, _), mut took) in machines.into_iter().zip(took) {
                took.sort_unstable();
                let at = |share: usize| took[took.len() * share / 4].as_nanos();
                let (low, half, high) = (at(1), at(2), at(3));
                println!("COST,{read},{length},{cpus},{half},{low},{high}");
            }
        }
    }
}

/// Measures the cost of a query by the number of CPUs that the program believes in.
#[test]
#[ignore = "measures: run it with --nocapture"]
fn what_a_query_costs() {
    costs(&[2, 4, 8, 16, 64, 512], 2000);
}

/// Measures the cost of a query by the CPUs that there are: `bench/query-by-cpus` runs this test in
/// emulated machines.
#[test]
#[ignore = "measures: run it with --nocapture"]
fn what_a_query_costs_with_the_cpus_here() {
    costs(&[libbpf_rs::num_possible_cpus().unwrap() as u32], 100);
}
