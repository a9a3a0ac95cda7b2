//! Load reports of clients (LRS): what each client sees of members, added up for their locations.
//!
//! A client says how many requests it has under way at a member, how many it has begun and how many have
//! failed since its last report. What all clients say of the members at a location, and what this process itself has
//! there, is reported as the location's `in_flight`; `requests_per_second` and `errors_per_second` are those of
//! the clients.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::group::Group;
use evenkeel_core::load::{LoadId, LoadValue, Location};
use evenkeel_core::member::Member;
use evenkeel_core::time::Instant;

use crate::proto::{self, LoadStatsRequest, UpstreamLocalityStats};

/// After so many intervals without a report what a client has said does not count any more.
const PATIENCE: u32 = 3;

/// Figures that a client sees of a location.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    in_progress: f64,
    /// Requests per second.
    begun: f64,
    /// Failures per second.
    failed: f64,
}

impl Figures {
    fn add(&mut self, other: Figures) {
        self.in_progress += other.in_progress;
        self.begun += other.begun;
        self.failed += other.failed;
    }
}

#[derive(Debug)]
struct Place {
    location: Arc<Location>,
    /// Figures that each client sees, and until when they count.
    clients: BTreeMap<u64, (Figures, Instant)>,
}

impl Place {
    fn report_loads(&mut self, now: Instant) {
        self.clients.retain(|_, (_, until)| *until > now);
        let mut sum = Figures::default();
        for (figures, _) in self.clients.values() {
            sum.add(*figures);
        }
        let loads = [
            (
                LoadId::IN_FLIGHT,
                sum.in_progress + f64::from(self.location.in_flight()),
            ),
            (LoadId::REQUESTS_PER_SECOND, sum.begun),
            (LoadId::ERRORS_PER_SECOND, sum.failed),
        ];
        for (id, value) in loads {
            if let Ok(value) = LoadValue::new(value) {
                // There is room for each load that has a name.
                let _ = self.location.report_load(id, value, now);
            }
        }
    }
}

/// Ledger of what clients say of their load.
#[derive(Debug, Default)]
pub struct Ledger {
    places: HashMap<Arc<str>, Place>,
    /// The locations that each client has said something of.
    clients: HashMap<u64, Vec<Arc<str>>>,
    /// The members of each group that somebody has reported of.
    tables: HashMap<Box<str>, Arc<Members>>,
}

/// Result of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Members that it was about.
    pub members: usize,
    /// Entries about what is no member.
    pub unknown: usize,
}

impl Ledger {
    /// Takes in what the client of that number reports; `interval` is how often the client is to do so. The
    /// client's report before does not count any more.
    pub fn take(
        &mut self,
        client: u64,
        report: &LoadStatsRequest,
        interval: Duration,
        group: impl Fn(&str) -> Option<Arc<Group>>,
        now: Instant,
    ) -> Taken {
        let mut taken = Taken::default();
        let mut said: HashMap<Arc<str>, (Arc<Location>, Figures)> = HashMap::new();
        for stats in &report.cluster_stats {
            let Some(members) = self.list_members(&stats.cluster_name, &group) else {
                taken.unknown += 1;
                continue;
            };
            let seconds = report_seconds(stats.load_report_interval.as_ref(), interval);
            for place in &stats.upstream_locality_stats {
                members.for_each_count(place, &mut taken, |member, counts| {
                    let location = &member.location;
                    let entry = said.entry(Arc::clone(location.name()));
                    let entry = entry.or_insert_with(|| (Arc::clone(location), Figures::default()));
                    entry.1.add(counts.per_second(seconds));
                });
            }
        }
        let names = said.keys().cloned().collect();
        let before = self.clients.insert(client, names).unwrap_or_default();
        for name in before {
            if !said.contains_key(&name) {
                self.remove_client(&name, client, now, true);
            }
        }
        let until = now.after(interval.saturating_mul(PATIENCE));
        for (name, (location, figures)) in said {
            let place = self.places.entry(name).or_insert_with(|| Place {
                location: Arc::clone(&location),
                clients: BTreeMap::new(),
            });
            // Another location of the same name may have taken its place.
            place.location = location;
            place.clients.insert(client, (figures, until));
            place.report_loads(now);
        }
        taken
    }

    /// Returns the members of the group of that name. The members are listed once for each state of a group,
    /// and not for each report of it.
    fn list_members(
        &mut self,
        name: &str,
        group: impl Fn(&str) -> Option<Arc<Group>>,
    ) -> Option<Arc<Members>> {
        let current = group(name)?;
        let known = self.tables.get(name);
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.group, &current)) {
            return Some(Arc::clone(known));
        }
        // Those of groups that are not there any more go.
        self.tables.retain(|name, table| {
            group(name).is_some_and(|current| Arc::ptr_eq(&current, &table.group))
        });
        let members = Arc::new(Members::from_group(current));
        self.tables.insert(name.into(), Arc::clone(&members));
        Some(members)
    }

    /// Forgets a client that is gone, and what it said.
    pub fn forget_client(&mut self, client: u64, now: Instant) {
        for name in self.clients.remove(&client).unwrap_or_default() {
            self.remove_client(&name, client, now, false);
        }
    }

    /// Ends what a client says of a location: because nothing is there (`is_known`), or because the client is
    /// gone.
    fn remove_client(&mut self, name: &Arc<str>, client: u64, now: Instant, is_known: bool) {
        let Some(place) = self.places.get_mut(name) else {
            return;
        };
        place.clients.remove(&client);
        let is_last = place.clients.is_empty();
        if is_known || !is_last {
            place.report_loads(now);
        }
        if is_last {
            self.places.remove(name);
        }
    }
}

/// Returns for how long a report counts, in seconds.
fn report_seconds(reported: Option<&proto::Duration>, interval: Duration) -> f64 {
    let reported = reported.map(|time| time.seconds as f64 + f64::from(time.nanos) / 1e9);
    // Shorter ones make nonsense of it.
    let reported = reported.filter(|seconds| (0.01..1e6).contains(seconds));
    reported.unwrap_or_else(|| interval.as_secs_f64().max(0.01))
}

/// Counts of a client.
#[derive(Clone, Copy)]
struct Counts {
    in_progress: u64,
    begun: u64,
    failed: u64,
}

impl Counts {
    fn per_second(self, seconds: f64) -> Figures {
        Figures {
            in_progress: self.in_progress as f64,
            begun: self.begun as f64 / seconds,
            failed: self.failed as f64 / seconds,
        }
    }
}

/// The members of a group by what clients call them.
#[derive(Debug)]
struct Members {
    group: Arc<Group>,
    /// Places of the members in the group.
    by_name: HashMap<Arc<str>, usize>,
    by_address: HashMap<(IpAddr, u32), usize>,
}

impl Members {
    fn from_group(group: Arc<Group>) -> Self {
        let all = group.members().iter().enumerate();
        let by_address = all.clone().filter_map(|(place, member)| {
            let address = member.address.socket()?;
            Some(((address.ip(), u32::from(address.port())), place))
        });
        let by_name = all.map(|(place, member)| (Arc::clone(&member.name), place));
        Members {
            by_address: by_address.collect(),
            by_name: by_name.collect(),
            group,
        }
    }

    /// Goes through what a client has counted at one place: of each endpoint, if it says so, or of the one that the
    /// place is.
    fn for_each_count(
        &self,
        place: &UpstreamLocalityStats,
        taken: &mut Taken,
        mut act: impl FnMut(&Member, Counts),
    ) {
        let members = self.group.members();
        let mut one = |place: Option<&usize>, counts: Counts| match place
            .and_then(|place| members.get(*place))
        {
            Some(member) => {
                taken.members += 1;
                act(member, counts);
            }
            None => taken.unknown += 1,
        };
        for endpoint in &place.upstream_endpoint_stats {
            let address = endpoint.address.as_ref();
            let address = address.and_then(|address| address.socket_address.as_ref());
            let member = address.and_then(|address| {
                let ip = address.address.parse().ok()?;
                self.by_address.get(&(ip, address.port_value))
            });
            let counts = Counts {
                in_progress: endpoint.total_requests_in_progress,
                begun: endpoint.total_issued_requests,
                failed: endpoint.total_error_requests,
            };
            one(member, counts);
        }
        let sub_zone = place.locality.as_ref().map(|locality| &*locality.sub_zone);
        let sub_zone = sub_zone.filter(|name| !name.is_empty());
        if let (true, Some(name)) = (place.upstream_endpoint_stats.is_empty(), sub_zone) {
            let counts = Counts {
                in_progress: place.total_requests_in_progress,
                begun: place.total_issued_requests,
                failed: place.total_error_requests,
            };
            one(self.by_name.get(name), counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::group::{GroupSettings, GroupState};
    use evenkeel_core::member::{MemberId, Slot, Weight};
    use evenkeel_core::strategy::{self, Values};

    use super::*;
    use crate::proto::{Address, ClusterStats, Locality, SocketAddress, UpstreamEndpointStats};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn group() -> Arc<Group> {
        let members = (0..2u16).map(|index| Member {
            id: MemberId(u64::from(index)),
            name: format!("m{index}").into(),
            given_name: None,
            host: "192.0.2.1".into(),
            address: std::net::SocketAddr::from(([192, 0, 2, 1], 80 + index)).into(),
            max_connections: None,
            location: Arc::new(Location::new(format!("l{index}"))),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        });
        let values = Values::defaults(strategy::find("round_robin").unwrap());
        let state = Arc::<GroupState>::default();
        let settings = GroupSettings::default();
        Arc::new(Group::new(
            "pool",
            settings,
            &values,
            members.collect(),
            state,
        ))
    }

    fn endpoint(port: u32, counts: [u64; 3]) -> UpstreamEndpointStats {
        let [in_progress, begun, failed] = counts;
        UpstreamEndpointStats {
            address: Some(Address {
                socket_address: Some(SocketAddress {
                    address: "192.0.2.1".into(),
                    port_value: port,
                }),
                pipe: None,
            }),
            total_requests_in_progress: in_progress,
            total_error_requests: failed,
            total_issued_requests: begun,
        }
    }

    fn report(cluster: &str, places: Vec<UpstreamLocalityStats>, seconds: i64) -> LoadStatsRequest {
        LoadStatsRequest {
            node: None,
            cluster_stats: vec![ClusterStats {
                cluster_name: cluster.into(),
                upstream_locality_stats: places,
                load_report_interval: Some(proto::Duration { seconds, nanos: 0 }),
            }],
        }
    }

    fn by_endpoint(endpoints: Vec<UpstreamEndpointStats>) -> UpstreamLocalityStats {
        UpstreamLocalityStats {
            upstream_endpoint_stats: endpoints,
            ..UpstreamLocalityStats::default()
        }
    }

    fn loads(group: &Group, index: usize, now: Instant) -> Vec<Option<f32>> {
        let ids = [
            LoadId::IN_FLIGHT,
            LoadId::REQUESTS_PER_SECOND,
            LoadId::ERRORS_PER_SECOND,
        ];
        let location = &group.members()[index].location;
        let fresh = ids.map(|id| location.fresh_load(id, now, Duration::from_secs(15)));
        fresh.into()
    }

    #[test]
    fn what_clients_see_is_added_up() {
        let (mut ledger, group) = (Ledger::default(), group());
        let known = |name: &str| (name == "pool").then(|| Arc::clone(&group));
        // Envoy reports of endpoints, and clients of gRPC of the locality that each endpoint is.
        let endpoints = vec![
            endpoint(80, [3, 20, 2]),
            endpoint(81, [1, 0, 0]),
            endpoint(99, [9, 9, 9]),
        ];
        let envoy = report("pool", vec![by_endpoint(endpoints)], 2);
        let taken = ledger.take(1, &envoy, SECOND, known, at(0));
        assert_eq!((taken.members, taken.unknown), (2, 1));
        assert_eq!(loads(&group, 0, at(1)), [Some(3.0), Some(10.0), Some(1.0)]);
        assert_eq!(loads(&group, 1, at(1)), [Some(1.0), Some(0.0), Some(0.0)]);
        let alone = UpstreamLocalityStats {
            locality: Some(Locality {
                sub_zone: "m0".into(),
                ..Locality::default()
            }),
            total_requests_in_progress: 4,
            total_issued_requests: 7,
            ..UpstreamLocalityStats::default()
        };
        let taken = ledger.take(2, &report("pool", vec![alone], 1), SECOND, known, at(10));
        assert_eq!((taken.members, taken.unknown), (1, 0));
        assert_eq!(loads(&group, 0, at(11)), [Some(7.0), Some(17.0), Some(1.0)]);
        // The next report of a client takes the place of the last one.
        let next = report("pool", vec![by_endpoint(vec![endpoint(81, [2, 2, 0])])], 1);
        ledger.take(1, &next, SECOND, known, at(1000));
        assert_eq!(
            loads(&group, 0, at(1001)),
            [Some(4.0), Some(7.0), Some(0.0)]
        );
        assert_eq!(
            loads(&group, 1, at(1001)),
            [Some(2.0), Some(2.0), Some(0.0)]
        );
        // One that is silent does not count any more.
        let again = report("pool", vec![by_endpoint(vec![endpoint(80, [1, 1, 0])])], 1);
        ledger.take(1, &again, SECOND, known, at(5000));
        assert_eq!(
            loads(&group, 0, at(5001)),
            [Some(1.0), Some(1.0), Some(0.0)]
        );
        assert_eq!(
            loads(&group, 1, at(5001)),
            [Some(0.0), Some(0.0), Some(0.0)]
        );
        // One that says nothing of a location any more, or nothing at all, has nothing there.
        let nothing = LoadStatsRequest::default();
        assert_eq!(
            ledger.take(1, &nothing, SECOND, known, at(5050)),
            Taken::default()
        );
        assert_eq!(
            loads(&group, 0, at(5051)),
            [Some(0.0), Some(0.0), Some(0.0)]
        );
        // Nor does one count that is gone; what nobody speaks of becomes old.
        ledger.take(2, &next, SECOND, known, at(5100));
        ledger.forget_client(1, at(5200));
        ledger.forget_client(2, at(5200));
        assert!(ledger.places.is_empty() && ledger.clients.is_empty());
        assert_eq!(loads(&group, 0, at(30_000)), [None, None, None]);
        let elsewhere = report("other", Vec::new(), 1);
        assert_eq!(
            ledger.take(1, &elsewhere, SECOND, known, at(6000)).unknown,
            1
        );
    }

    #[test]
    fn n6_members_are_listed_once_however_often_a_report_names_their_group() {
        let (mut ledger, first) = (Ledger::default(), group());
        let current = std::cell::RefCell::new(Arc::clone(&first));
        let known = |name: &str| (name == "pool").then(|| Arc::clone(&current.borrow()));
        let mut many = report("pool", Vec::new(), 1);
        many.cluster_stats = vec![many.cluster_stats[0].clone(); 8000];
        assert_eq!(
            ledger.take(1, &many, SECOND, known, at(0)),
            Taken::default()
        );
        let table = Arc::clone(&ledger.tables["pool"]);
        assert_eq!(
            Arc::strong_count(&first),
            3,
            "this one, the handle, the table"
        );
        ledger.take(2, &many, SECOND, known, at(1));
        assert!(Arc::ptr_eq(&table, &ledger.tables["pool"]));
        // Another state of the group has another table, and the old one goes.
        *current.borrow_mut() = group();
        let one = report("pool", vec![by_endpoint(vec![endpoint(80, [1, 2, 0])])], 1);
        assert_eq!(ledger.take(1, &one, SECOND, known, at(2)).members, 1);
        assert!(!Arc::ptr_eq(&table, &ledger.tables["pool"]));
        assert_eq!(loads(&current.borrow(), 0, at(3))[0], Some(1.0));
        drop(table);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn absurd_figures_are_left_out() {
        let (mut ledger, group) = (Ledger::default(), group());
        let known = |_: &str| Some(Arc::clone(&group));
        let mut absurd = report(
            "pool",
            vec![by_endpoint(vec![endpoint(80, [u64::MAX; 3])])],
            1,
        );
        absurd.cluster_stats[0].load_report_interval = Some(proto::Duration {
            seconds: i64::MIN,
            nanos: -1,
        });
        ledger.take(1, &absurd, SECOND, known, at(0));
        assert_eq!(loads(&group, 0, at(1)), [None, None, None]);
    }
}
