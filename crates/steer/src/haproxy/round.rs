//! Round with a backend of HAProxy: what it has, what differs, what is sent.

use std::collections::{BTreeSet, HashMap};

use evenkeel_config::SteerHaproxy;

use super::answers::{About, Server, parse_info, parse_servers};
use super::plan::{BackendFacts, Order, Set, plan_orders, plan_restoration};
use super::socket::{HaproxyError, MOST, send_line, send_orders};
use crate::status::SteeredMember;
use crate::wanted::MemberShare;

/// Knowledge about a backend that is kept from one round to the next.
#[derive(Debug, Default)]
pub struct Haproxy {
    known: BackendFacts,
    about: Option<About>,
    /// The weight that each server was told last.
    told: HashMap<String, u32>,
}

/// Result of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The process.
    pub about: About,
    /// True if this is another process than in the round before.
    pub restarted: bool,
    /// Servers whose weight was changed by somebody else since.
    pub overridden: usize,
    /// Orders that were sent, or would be.
    pub orders: Vec<Order>,
    /// The members with what they have now.
    pub members: Vec<SteeredMember>,
    /// Servers that belong to no member.
    pub others: Vec<String>,
}

impl Haproxy {
    /// Returns a backend of which we have put these servers into maintenance.
    pub fn new(maintained: BTreeSet<String>) -> Self {
        Haproxy {
            known: BackendFacts {
                maintained,
                ..BackendFacts::default()
            },
            ..Haproxy::default()
        }
    }

    /// Servers that we have put into maintenance.
    pub fn servers_in_maintenance(&self) -> &BTreeSet<String> {
        &self.known.maintained
    }

    /// Asks what there is, and sends what differs from what is `wanted`; sends nothing if that is only to be
    /// `shown`.
    ///
    /// # Errors
    ///
    /// HAProxy cannot be asked, or takes no changes. Orders that were sent before the error hold.
    pub async fn run_round(
        &mut self,
        haproxy: &SteerHaproxy,
        wanted: &[MemberShare],
        shown: bool,
    ) -> Result<Round, HaproxyError> {
        let (about, servers) = self.query_state(haproxy).await?;
        let before = self.about.replace(about.clone());
        let restarted = before.is_some_and(|before| before.pid != about.pid);
        if restarted {
            // It begins with what its configuration says now. Maintenance may last, by a file of its state.
            self.told.clear();
            self.known.is_static = false;
        }
        let is_maintained = |name: &String| {
            let server = servers.iter().find(|server| server.name == *name);
            server.is_some_and(Server::is_maintained)
        };
        self.known.maintained.retain(is_maintained);
        let changed = servers.iter().filter(|server| {
            let told = self.told.get(&server.name);
            told.is_some_and(|told| *told != server.weight)
        });
        let overridden = changed.count();
        self.known.adds.clone_from(&haproxy.add_servers);
        let mut planned = plan_orders(&haproxy.backend, &servers, wanted, &self.known);
        if !shown {
            let (orders, notes) = self.send_and_sort(haproxy, planned.orders).await?;
            planned.orders = orders;
            for member in &mut planned.members {
                let Some(server) = &member.server else {
                    continue;
                };
                if let Some(note) = notes.get(server) {
                    member.note = Some(note.clone());
                } else if let Some(weight) = self.told.get(server) {
                    member.has = Some(*weight);
                }
            }
        }
        Ok(Round {
            about,
            restarted,
            overridden,
            orders: planned.orders,
            members: planned.members,
            others: planned.foreign_servers,
        })
    }

    /// Brings the servers of `wanted` back to what HAProxy's configuration says; answers what was sent.
    ///
    /// # Errors
    ///
    /// Those of [`Haproxy::run_round`].
    pub async fn restore_servers(
        &mut self,
        haproxy: &SteerHaproxy,
        wanted: &[MemberShare],
    ) -> Result<Vec<Order>, HaproxyError> {
        let (_, servers) = self.query_state(haproxy).await?;
        let orders = plan_restoration(&haproxy.backend, &servers, wanted, &self.known);
        Ok(self.send_and_sort(haproxy, orders).await?.0)
    }

    async fn query_state(
        &self,
        haproxy: &SteerHaproxy,
    ) -> Result<(About, Vec<Server>), HaproxyError> {
        let about = parse_info(&send_line(haproxy, "show info", MOST).await?)?;
        let question = format!("show servers state {}", haproxy.backend);
        let servers = parse_servers(
            &send_line(haproxy, &question, MOST).await?,
            &haproxy.backend,
        )?;
        Ok((about, servers))
    }

    /// Sends orders; answers those that were carried out, and what HAProxy says of other servers.
    async fn send_and_sort(
        &mut self,
        haproxy: &SteerHaproxy,
        orders: Vec<Order>,
    ) -> Result<(Vec<Order>, HashMap<String, String>), HaproxyError> {
        let version = self
            .about
            .as_ref()
            .map_or("", |about| about.version.as_str());
        // There it is new, and has to be allowed.
        let before = match version.starts_with("2.4") {
            true => "experimental-mode on; ",
            false => "",
        };
        let refused = send_orders(haproxy, &orders, before).await?;
        let mut notes = HashMap::new();
        for refusal in &refused {
            if refusal.said.contains("static LB algorithm") {
                // The next round sends what it takes.
                self.known.is_static = true;
            }
            let note = format!("HAProxy says: {}", refusal.said);
            notes.insert(refusal.order.server.clone(), note);
        }
        let is_done = |order: &Order| refused.iter().all(|refusal| refusal.order != *order);
        let done: Vec<Order> = orders.into_iter().filter(is_done).collect();
        for order in &done {
            match order.set {
                Set::Added(..) | Set::Checked => {}
                Set::Deleted => {
                    self.told.remove(&order.server);
                    self.known.maintained.remove(&order.server);
                }
                Set::Weight(weight) => {
                    self.told.insert(order.server.clone(), weight);
                }
                Set::Initial => {
                    self.told.remove(&order.server);
                }
                Set::Maintenance => {
                    self.known.maintained.insert(order.server.clone());
                }
                Set::Ready => {
                    self.known.maintained.remove(&order.server);
                }
            }
        }
        Ok((done, notes))
    }
}
