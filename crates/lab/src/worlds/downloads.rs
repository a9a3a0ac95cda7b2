//! Clients that fetch files one after the other through a rule of TCP, after Al-qdah and Bin Abu Yan,
//! *A Java TCP Server Load Balancer*: crawls of a web site, a connection for each file, and FTP sessions,
//! whose files all come from the server that the session is at.

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_core::group::GroupSettings;
use evenkeel_core::strategy::Values;
use evenkeel_manager::config::Config;

use evenkeel_sim::config::group_config;
use evenkeel_sim::engine::duration_nanos;
use evenkeel_sim::requests::{self, Dispatch};
use evenkeel_sim::scenario::{MemberModel, Scenario};
use evenkeel_sim::server::Discipline;
use evenkeel_sim::work::{Arrivals, RequestWork, Source, Visit, Work};

/// A client, which begins its next session when one has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Client {
    /// Address of the client.
    pub address: Ipv4Addr,
    /// Time that the client takes itself to get a piece, in which no server works for it: on
    /// average (exponential).
    pub pace: Duration,
}

/// Parameters of the world.
#[derive(Clone, Debug)]
pub struct Downloads {
    /// Servers, all alike, with one processor each.
    pub servers: usize,
    /// Clients that download.
    pub clients: Vec<Client>,
    /// CPU time that each piece of a session takes a server: of a file, or a part of one.
    pub pieces: Vec<Duration>,
    /// True if all pieces of a session come over one connection; otherwise each comes over its own.
    pub one_connection: bool,
    /// Time of a message from the balancer to a server, or back.
    pub network: Duration,
    /// Strategy that chooses the server.
    pub strategy: Values,
    /// Interval at which it is noted down how busy servers are.
    pub samples: Duration,
    /// Duration of the run.
    pub length: Duration,
}

/// Results of the run.
#[derive(Clone, Debug)]
pub struct Downloaded {
    /// Durations of the sessions that each client has ended.
    pub sessions: Vec<Vec<Duration>>,
    /// Pieces that each server sent.
    pub pieces: Vec<usize>,
    /// Mean time that a piece took, without the client's own time.
    pub response: Duration,
    /// Share of the time since the last sample in which each server was busy.
    pub busy: Vec<Vec<f64>>,
}

/// Pieces of sessions, in their order.
#[derive(Debug)]
struct Pieces {
    costs: Rc<Vec<f64>>,
    next: usize,
    client: Ipv4Addr,
}

impl Work for Pieces {
    fn draw(&mut self, _: &mut fastrand::Rng) -> RequestWork {
        let document = self.next;
        self.next = (document + 1) % self.costs.len();
        let cost = self.costs[document];
        RequestWork { cost, document }
    }

    fn key(&self, _: RequestWork) -> Option<u64> {
        Some(self.client.to_bits().into())
    }
}

/// Plays it with a seed. `None` without a server or a piece.
pub fn play_downloads(downloads: &Downloads, seed: u64) -> Option<Downloaded> {
    if downloads.servers == 0 || downloads.pieces.is_empty() {
        return None;
    }
    let server = MemberModel {
        discipline: Discipline::Sharing,
        ..MemberModel::NORMAL
    };
    let weights = std::iter::repeat_n(1.0, downloads.servers);
    let (settings, strategy) = (GroupSettings::default(), downloads.strategy.clone());
    let base = Scenario::new("downloads", 0);
    let scenario = Scenario {
        members: vec![server; downloads.servers],
        network: downloads.network,
        config: Some(Config {
            groups: vec![group_config(&base.group, weights, settings, strategy).into()],
            ..Config::default()
        }),
        samples: Some(downloads.samples),
        length: Some(downloads.length),
        ..base
    };
    let costs = Rc::new(
        downloads
            .pieces
            .iter()
            .copied()
            .map(duration_nanos)
            .collect(),
    );
    let source = |client: &Client| Source {
        group: scenario.group.clone(),
        arrivals: Arrivals::Closed(1),
        visit: Visit {
            requests: downloads.pieces.len(),
            think: duration_nanos(client.pace),
            connection: downloads.one_connection,
        },
        work: Box::new(Pieces {
            costs: Rc::clone(&costs),
            next: 0,
            client: client.address,
        }),
    };
    let sources = downloads.clients.iter().map(source).collect();
    let outcomes = requests::play_sources(&scenario, &Dispatch::Configured, sources, seed);
    let mut sessions = vec![Vec::new(); downloads.clients.len()];
    for &(client, took) in &outcomes.visits {
        sessions[client].push(Duration::from_nanos(took));
    }
    let busy = |sample: &requests::Sample| sample.members.iter().map(|of| of.busy).collect();
    Some(Downloaded {
        sessions,
        response: outcomes.mean(),
        busy: outcomes.samples.iter().map(busy).collect(),
        pieces: outcomes.per_member,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn downloads(strategy: &str, one_connection: bool) -> Downloads {
        let client = |number: u8| Client {
            address: Ipv4Addr::new(192, 168, 0, number),
            pace: Duration::from_millis(30),
        };
        let kind = evenkeel_core::strategy::find(strategy).unwrap();
        Downloads {
            servers: 4,
            clients: (1..=8).map(client).collect(),
            pieces: vec![Duration::from_millis(2); 100],
            one_connection,
            network: Duration::from_micros(100),
            strategy: Values::defaults(kind),
            samples: Duration::from_secs(1),
            length: Duration::from_secs(60),
        }
    }

    /// The widest a second's shares of busy time are apart, on average.
    fn apart(played: &Downloaded) -> f64 {
        let apart = |busy: &Vec<f64>| {
            let most = busy.iter().copied().fold(0.0, f64::max);
            most - busy.iter().copied().fold(1.0, f64::min)
        };
        played.busy.iter().map(apart).sum::<f64>() / played.busy.len() as f64
    }

    #[test]
    fn a_session_takes_what_the_client_and_the_servers_take() {
        for one_connection in [false, true] {
            let played = play_downloads(&downloads("round_robin", one_connection), 1).unwrap();
            let ended = played.sessions.concat();
            let sum: f64 = ended.iter().map(Duration::as_secs_f64).sum();
            // 99 pauses of 30 ms, and 100 answers.
            let expected = 99.0 * 0.03 + 100.0 * played.response.as_secs_f64();
            let mean = sum / ended.len() as f64;
            assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
            assert_eq!(played.busy.len(), 60);
        }
    }

    #[test]
    fn connections_are_what_is_balanced() {
        let crawl = play_downloads(&downloads("round_robin", false), 1).unwrap();
        let (most, least) = (crawl.pieces.iter().max(), crawl.pieces.iter().min());
        assert!(most.unwrap() - least.unwrap() <= 1, "{:?}", crawl.pieces);
        // Two sessions at each server, always; and by chance not.
        let even = apart(&play_downloads(&downloads("least_connection", true), 1).unwrap());
        let uneven = apart(&play_downloads(&downloads("random", true), 1).unwrap());
        assert!(even < uneven * 0.7, "{even} {uneven}");
    }

    #[test]
    fn without_servers_or_pieces_nothing_is_played() {
        let none = Downloads {
            servers: 0,
            ..downloads("random", true)
        };
        assert!(play_downloads(&none, 1).is_none());
        let none = Downloads {
            pieces: Vec::new(),
            ..downloads("random", true)
        };
        assert!(play_downloads(&none, 1).is_none());
    }
}
