//! Rounds of the translation: what the parser of configurations refuses is left out, until nothing is refused.
//!
//! The parser reports all problems of a text, and each line of the text has an owner. So the first round finds each
//! rule that is wrong by itself, however many there are: rules that never serve, such as those with the conditions of
//! an older rule, are part of the text, too. The second round finds rules that contradict older ones. Whatever the
//! number of bad objects, a few rounds are enough.

use std::borrow::Cow;
use std::sync::Arc;

use evenkeel_config::{Errors, GeneratedParser, GeneratedText, Problem};

#[cfg(test)]
use super::super::conditions::Status;
use super::super::group_policies::Culprit;
use super::super::objects::{Kind, ObjectName, Objects};
use super::super::rule_policies::find_rule_culprits;
use super::super::settings::Settings;
use super::super::text::{LineOrigin, Owner};
use super::entry::find_part_owner;
use super::ingress::count_owners;
use super::kept::{KeptRoutes, merge_entries};
use super::others::KeptOthers;
use super::{Refused, Translation, Work, rank_age};

/// Most rules that are found one by one because nobody is known to be at fault. From the next one on, all rules that are
/// newer are left out.
const SINGLE_CULPRITS: usize = 4;

/// Translates all objects. `refused` has owners that could not be put into effect, such as listeners at a port that is in
/// use.
pub fn translate(objects: &Objects, settings: &Settings, refused: &Refused) -> Translation {
    translate_again(objects, settings, refused, &mut Kept::default())
}

/// Parts of a translation that the next one needs not make anew.
#[derive(Debug, Default)]
pub struct Kept {
    parser: GeneratedParser,
    routes: KeptRoutes,
    others: KeptOthers,
}

#[cfg(test)]
impl Kept {
    /// Returns the number of routes of requests that were translated.
    pub(crate) fn count_translated(&self) -> u64 {
        self.routes.translated
    }

    /// Returns the number of times that all other routes were translated.
    pub(crate) fn count_others(&self) -> u64 {
        self.others.translated
    }
}

/// Translates all objects as [`translate`] does. `kept` has the parts of the translation before.
pub fn translate_again(
    objects: &Objects,
    settings: &Settings,
    refused: &Refused,
    kept: &mut Kept,
) -> Translation {
    let mut refused = refused.clone();
    let (mut culprits, mut rounds) = (0, 0);
    let problem = loop {
        rounds += 1;
        let known = refused.clone();
        let mut work = Work::new(objects, settings, &known);
        work.run(&mut kept.routes, &mut kept.others);
        let text = work.text.take_parts();
        let errors = match kept.parser.parse(&text) {
            Ok(config) if work.contradictions.is_empty() => {
                return work.finish(text, Ok(Arc::new(config)), rounds);
            }
            Ok(_) => {
                refused.extend(work.contradictions);
                continue;
            }
            Err(errors) => errors,
        };
        for (owner, message) in work.find_owners(&text, &errors) {
            refused.entry(owner).or_insert(message);
        }
        if refused.len() > known.len() {
            continue;
        }
        // The parser knows of no owner.
        let newest = find_newest(objects, settings, &refused);
        let most = match culprits < SINGLE_CULPRITS {
            true => 1,
            false => usize::MAX,
        };
        culprits += 1;
        let problem = errors.problems.first().map(ToString::to_string);
        let problem = problem.unwrap_or_default();
        if newest.is_empty() {
            break problem;
        }
        let left_out = newest.into_iter().take(most);
        refused.extend(left_out.map(|owner| (owner, problem.clone())));
    };
    // Nothing that routes have is at fault: the configuration stays as it is, and the gateways say so.
    let message = "the configuration of the gateways cannot be made; see the log of the balancer";
    let mut work = Work::new(objects, settings, &refused);
    for listener in &mut work.listeners {
        listener.not_in_effect = Some(message.into());
    }
    work.run(&mut KeptRoutes::default(), &mut KeptOthers::default());
    work.finish(GeneratedText::default(), Err(problem), rounds)
}

impl Work<'_> {
    /// Translates all routes, and writes the text. `kept` and `others` have translations of routes.
    fn run(&mut self, kept: &mut KeptRoutes, others: &mut KeptOthers) {
        self.translate_http(kept);
        self.write_text(kept, others);
    }

    /// Writes the text. `kept` has the translations of all routes of requests, and `others` may have those of other routes.
    fn write_text(&mut self, kept: &KeptRoutes, others: &mut KeptOthers) {
        let others = self.translate_others(others, kept.changes);
        for index in 0..self.frontends.len() {
            let entries = merge_entries(kept.entries_of(index), others.entries_of(index));
            self.write_frontend(index, &entries, others.targets_of(index).to_vec());
        }
        self.groups.write(&mut self.text);
    }

    /// Returns the owners of the lines of `text` that problems are about. All rules that use a group own the group.
    fn find_owners(&self, text: &GeneratedText, errors: &Errors) -> Vec<(Owner, String)> {
        let (mut found, origins) = (Vec::new(), self.text.list_origins(text));
        for problem in &errors.problems {
            let message = || show_problem(problem);
            let owner = match origins.find(problem.line) {
                Some(LineOrigin::Owner(owner)) => Some(Cow::Borrowed(&***owner)),
                Some(LineOrigin::Part(part)) => find_part_owner(*part),
                None => None,
            };
            match owner.as_deref() {
                Some(Owner::Group(name)) => {
                    let culprits = find_rule_culprits(&self.rule_lines, name, problem);
                    if !culprits.is_empty() {
                        found.extend(culprits.into_iter().map(|of| (of.clone(), message())));
                        continue;
                    }
                    let tuning = self.groups.tuning_of(name);
                    let culprit = tuning.and_then(|of| of.find_culprit(problem));
                    let users = self.groups.users_of(name);
                    if let Some(Culprit {
                        policy,
                        is_of_gateway,
                    }) = culprit
                    {
                        let owners = match is_of_gateway {
                            true => list_policy_owners(policy, users.map(|user| &**user)),
                            false => vec![Owner::Policy(policy.clone())],
                        };
                        found.extend(owners.into_iter().map(|owner| (owner, message())));
                        continue;
                    }
                    found.extend(users.map(|user| (Owner::clone(user), message())));
                }
                Some(owner) => {
                    found.extend(self.list_culprits(owner, problem, message(), text));
                }
                None => {}
            }
        }
        found
    }
}

/// Translates all objects in one round: routes of requests one by one, or in order with the same groups.
#[cfg(test)]
pub(crate) fn translate_once(
    objects: &Objects,
    settings: &Settings,
    refused: &Refused,
    is_in_order: bool,
) -> (GeneratedText, Vec<Arc<Status>>) {
    let mut work = Work::new(objects, settings, refused);
    let mut kept = KeptRoutes::default();
    assert!(kept.refresh(&work, is_in_order));
    work.use_http(&kept);
    work.write_text(&kept, &mut KeptOthers::default());
    (work.text.take_parts(), work.statuses)
}

/// Returns the owners of the keys of a gateway's policy for the routes of rules.
fn list_policy_owners<'u>(
    policy: &ObjectName,
    users: impl Iterator<Item = &'u Owner>,
) -> Vec<Owner> {
    let owners = users.filter_map(|user| match user {
        Owner::Rule(kind, route, _) => {
            Some(Owner::PolicyAtRoute(policy.clone(), *kind, route.clone()))
        }
        _ => None,
    });
    owners.collect()
}

fn show_problem(problem: &Problem) -> String {
    match problem.key.rsplit('.').next().unwrap_or_default() {
        "" => problem.message.clone(),
        key => format!("{key}: {}", problem.message),
    }
}

/// Returns the rules without which the configuration can be made, the oldest of them first: all rules that are older than
/// these do no harm together. None if routes are not at fault.
fn find_newest(objects: &Objects, settings: &Settings, refused: &Refused) -> Vec<Owner> {
    let http = objects.http_routes.values();
    let http = http.map(|of| (Kind::HttpRoute, &of.metadata, of.spec.rules.len()));
    let grpc = objects.grpc_routes.values();
    let grpc = grpc.map(|of| (Kind::GrpcRoute, &of.metadata, of.spec.rules.len()));
    let tls = objects.tls_routes.values();
    let tls = tls.map(|of| (Kind::TlsRoute, &of.metadata, 1));
    let tcp = objects.tcp_routes.values();
    let tcp = tcp.map(|of| (Kind::TcpRoute, &of.metadata, 1));
    let udp = objects.udp_routes.values();
    let udp = udp.map(|of| (Kind::UdpRoute, &of.metadata, 1));
    let ingresses = objects.ingresses.values();
    let ingresses = ingresses.map(|of| (Kind::Ingress, &of.metadata, count_owners(of)));
    let routes = http.chain(grpc).chain(tls).chain(tcp).chain(udp);
    let mut all: Vec<_> = routes.chain(ingresses).collect();
    all.sort_by_cached_key(|(kind, metadata, _)| (rank_age(metadata), *kind));
    let owners = all.into_iter().flat_map(|(kind, metadata, rules)| {
        (0..rules).map(move |number| Owner::Rule(kind, metadata.object_name(), number))
    });
    let mut owners: Vec<Owner> = owners
        .filter(|owner| !refused.contains_key(owner))
        .collect();
    let is_good = |kept: usize| {
        let mut refused = refused.clone();
        let newer = owners.iter().skip(kept);
        refused.extend(newer.map(|owner| (owner.clone(), String::new())));
        let mut work = Work::new(objects, settings, &refused);
        work.run(&mut KeptRoutes::default(), &mut KeptOthers::default());
        evenkeel_config::parse_generated(&work.text.take_parts()).is_ok()
    };
    if !is_good(0) {
        return Vec::new();
    }
    let (mut good, mut bad) = (0, owners.len());
    while good + 1 < bad {
        let middle = good.midpoint(bad);
        match is_good(middle) {
            true => good = middle,
            false => bad = middle,
        }
    }
    owners.split_off(good)
}
