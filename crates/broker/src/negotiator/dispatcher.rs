//! Answers what clients ask: from the head of a request to its answer.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_config::negotiator::origin_of;
use evenkeel_config::{Cluster, Origin, Quantum, Terms};
use evenkeel_core::group::{Advice, Group};
use evenkeel_core::member::{Member, MemberId};
use evenkeel_core::time::Instant;
use evenkeel_manager::chooser::{About, Asker, Chooser};
use evenkeel_manager::snapshot::{GroupSnapshot, Snapshot};
use evenkeel_net::Clock;
use evenkeel_net::http::answer::{self, Freshness};
use evenkeel_net::http::{Answer, Handler, Head, IdleConnections, Target};
use hyper::header::{ALLOW, HeaderName, RETRY_AFTER, VARY};
use hyper::{Method, StatusCode};
use tracing::debug;

use super::clients::Clients;
use super::decide::{ClientRequest, Grant, Refusal, decide_grant, request_to_choose};
use super::metrics::{ClassCounters, Ending, Metrics, Unheard};
use super::request::{Form, Problem, RequestParts, asked_in_fields, asked_in_query, check_method};
use evenkeel_wire::negotiation::{Binding, NEGOTIATE, Refused, SESSION, Server};

/// State from which answers are made. One thread has it.
#[derive(Debug)]
pub(super) struct Dispatcher {
    clock: Clock,
    metrics: Arc<Metrics>,
    book: RefCell<Book>,
    /// Room for the work on one request.
    scratch: RefCell<Scratch>,
    /// Idle connections to choosers.
    choosers: IdleConnections<()>,
}

impl Asker for Dispatcher {
    type Permit = ();

    fn idle(&self) -> &IdleConnections<()> {
        &self.choosers
    }

    /// The number of questions at once is bounded, and each is for a client, whose connection is counted.
    fn permit(&self) -> Option<()> {
        Some(())
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wait_until(&self, at: Instant) -> impl Future<Output = ()> {
        tokio::time::sleep(at.since(self.clock.now()))
    }
}

#[derive(Debug)]
struct Scratch {
    rng: fastrand::Rng,
    excluded: Vec<MemberId>,
    clients: Clients,
}

/// The clusters, and how to find them.
#[derive(Debug, Default)]
struct Book {
    /// Clusters; each is held by whoever waits for a chooser, too.
    clusters: Vec<Rc<Counter>>,
    by_name: HashMap<String, usize>,
    by_host: HashMap<String, usize>,
}

/// A cluster, as clients ask for it.
#[derive(Debug)]
struct Counter {
    cluster: Cluster,
    group: Arc<GroupSnapshot>,
    /// The class of those who name none, and then the others in the order of the file.
    counters: Vec<Arc<ClassCounters>>,
    /// Origins where members are reached, worked out once per snapshot of the group.
    origins: RefCell<Option<Origins>>,
}

/// Origins where the members of a group are reached.
#[derive(Debug)]
struct Origins {
    of: Arc<Group>,
    /// Origins in the order of the members; `None` for a member that cannot be reached.
    known: Vec<Option<Origin>>,
    /// Members that cannot be reached: a member that has just joined is in the group a moment before it is in
    /// the cluster.
    unreachable: Vec<MemberId>,
}

impl Handler for Dispatcher {
    async fn answer(&self, head: Head, client: SocketAddr) -> Answer {
        // A listener for both families gives IPv4 clients a mapped address.
        let client = client.ip().to_canonical();
        match self.hear(&head, client).await {
            Ok(answer) => answer,
            Err(problem) => {
                self.metrics.count(problem.why);
                debug!(
                    %client,
                    why = problem.why.name(),
                    detail = problem.detail,
                    "negotiator: a request is refused"
                );
                let allow = problem.allowed.join(", ");
                let (status, name) = (problem.status, problem.why.name());
                let answer = answer::error(status, name, &problem.detail, problem.allowed);
                match status {
                    StatusCode::METHOD_NOT_ALLOWED => answer::with_field(answer, ALLOW, &allow),
                    _ => answer,
                }
            }
        }
    }
}

impl Dispatcher {
    pub(super) fn new(clock: Clock, metrics: Arc<Metrics>) -> Self {
        Dispatcher {
            clock,
            metrics,
            book: RefCell::default(),
            scratch: RefCell::new(Scratch {
                rng: fastrand::Rng::new(),
                excluded: Vec::new(),
                clients: Clients::new(),
            }),
            choosers: IdleConnections::default(),
        }
    }

    /// Goes on with the clusters of another snapshot.
    pub(super) fn set(&self, next: &Snapshot) {
        let mut book = Book::default();
        for cluster in next.section::<Vec<Cluster>>().into_iter().flatten() {
            let Some(group) = next.find_group(&cluster.group) else {
                continue;
            };
            let index = book.clusters.len();
            let classes = cluster.classes.iter().map(|class| class.name.as_str());
            let counters = std::iter::once("")
                .chain(classes)
                .map(|class| self.metrics.class_counters(&cluster.name, class));
            book.clusters.push(Rc::new(Counter {
                cluster: cluster.clone(),
                group: Arc::clone(group),
                counters: counters.collect(),
                origins: RefCell::default(),
            }));
            book.by_name.insert(cluster.name.clone(), index);
            for host in &cluster.hosts {
                book.by_host.insert(host.clone(), index);
            }
        }
        self.book.replace(book);
        self.choosers.close_expired(self.clock.now());
    }

    async fn hear(&self, head: &Head, client: IpAddr) -> Result<Answer, Problem> {
        let (counter, asked) = match self.understand(head)? {
            Understood::Asked(counter, asked) => (counter, asked),
            Understood::Answered(answer) => return Ok(answer),
        };
        self.negotiate(&counter, &asked, client).await
    }

    /// Finds out what a request asks for.
    fn understand(&self, head: &Head) -> Result<Understood, Problem> {
        let target = Target::from_head(head).map_err(|error| {
            let detail = error.to_string();
            Problem::new(Unheard::Malformed, error.status(), detail)
        })?;
        let book = self.book.borrow();
        let by_host = target.host.as_ref().and_then(|host| book.by_host.get(host));
        let for_programs = target.path() == NEGOTIATE;
        let (cluster, asked) = if for_programs {
            check_method(head, &[Method::GET, Method::HEAD])?;
            let (name, asked) = asked_in_query(target.query())?;
            let cluster = match name {
                Some(name) => book.by_name.get(&name).ok_or_else(|| {
                    let detail = format!("there is no cluster {name:?}");
                    Problem::new(Unheard::UnknownCluster, StatusCode::NOT_FOUND, detail)
                })?,
                None => by_host.ok_or_else(|| {
                    Problem::bad_parameter(
                        "the parameter `cluster` is missing, and Host is not a site of any cluster",
                    )
                })?,
            };
            (cluster, asked)
        } else {
            let cluster = by_host.ok_or_else(|| {
                let detail = match &target.host {
                    Some(host) => format!("{host:?} is not a site that is served here"),
                    None => "an HTTP/1.0 request without Host has no site".into(),
                };
                Problem::new(
                    Unheard::UnknownHost,
                    StatusCode::MISDIRECTED_REQUEST,
                    detail,
                )
            })?;
            if target.path_and_query == "*" {
                check_method(head, &[Method::OPTIONS])?;
                let answer = answer::empty(StatusCode::NO_CONTENT);
                return Ok(Understood::Answered(answer));
            }
            (cluster, asked_in_fields(head, target)?)
        };
        let Some(counter) = book.clusters.get(*cluster) else {
            return Err(Problem::bad_parameter("there is no such cluster"));
        };
        Ok(Understood::Asked(Rc::clone(counter), asked))
    }

    async fn negotiate(
        &self,
        counter: &Counter,
        asked: &RequestParts,
        client: IpAddr,
    ) -> Result<Answer, Problem> {
        let cluster = &counter.cluster;
        let (index, terms) = counter.terms(asked.class.as_deref())?;
        let quantum = match terms.quantum {
            Quantum::Fixed(time) => time,
            Quantum::ByLoad { max, .. } => max,
        };
        let now = self.clock.now();
        let is_vouched = {
            let mut scratch = self.scratch.borrow_mut();
            scratch.clients.may_ask(client, quantum, now)
        };
        let wish = ClientRequest {
            terms,
            response_time: asked.response_time,
            avoid: &asked.avoid,
            alternatives: asked.alternatives,
            client,
            sent_back: matches!(asked.form, Form::Redirect { keep: false, .. }),
            current: asked.current.as_deref(),
            is_vouched,
        };
        let chooser = counter.group.chooser.as_deref();
        let advice = match chooser {
            Some(chooser) => {
                let class = asked.class.as_deref();
                self.ask_chooser(chooser, counter, &wish, class).await
            }
            None => None,
        };
        let now = self.clock.now();
        let mut scratch = self.scratch.borrow_mut();
        let Scratch { rng, excluded, .. } = &mut *scratch;
        let group = counter.group.group.current.load_full();
        excluded.clear();
        counter.exclude_unreachable(&group, excluded);
        let granted = decide_grant(&group, &wish, advice, now, rng, excluded);
        if let (Some(chooser), Some(advice), Ok(grant)) = (chooser, advice, &granted)
            && let Some(member) = group.members().get(grant.member)
        {
            chooser.count(advice, member.id);
        }
        let server = |member: usize| counter.server(&group, member);
        let granted = granted.and_then(|grant| {
            // Otherwise it would have been excluded.
            let server = server(grant.member).ok_or(Refusal::NoMember)?;
            Ok((grant, server))
        });
        let session = match &asked.session {
            Some(session) => session.clone(),
            None => format!("{:032x}", rng.u128(..)),
        };
        let class = asked.class.as_deref().unwrap_or_default();
        let ending = match (&granted, &asked.form) {
            (Ok(_), Form::Redirect { .. }) => Ending::Redirected,
            (Ok(_), Form::Binding) => Ending::Answered,
            (Err(refusal), _) => (*refusal).into(),
        };
        if let Some(counters) = counter.counters.get(index) {
            counters.count(ending);
        }
        debug!(
            cluster = cluster.name,
            class,
            %client,
            session,
            ending = ending.name(),
            member = granted.as_ref().ok().map(|(_, server)| server.name.as_str()),
            quantum = granted.as_ref().ok().map(|(grant, _)| grant.quantum),
            "negotiated"
        );
        let (grant, server) = match granted {
            Ok(granted) => granted,
            Err(refusal) => {
                let after = answer::retry_after_seconds(terms.retry_after);
                let body = Refused {
                    error: ending.name().into(),
                    detail: explain(refusal),
                    cluster: cluster.name.clone(),
                    class: asked.class.clone(),
                    retry_after_seconds: after.get().into(),
                };
                let answer = answer::json(StatusCode::SERVICE_UNAVAILABLE, &body, Freshness::None);
                return Ok(answer::with_field(answer, RETRY_AFTER, &after.to_string()));
            }
        };
        let freshness = Freshness::Seconds(grant.quantum);
        let answer = match &asked.form {
            Form::Redirect { to, keep: true } => answer::redirect(&server.url, to, freshness),
            Form::Redirect { to, keep: false } => {
                answer::redirect(&server.url, to, Freshness::None)
            }
            Form::Binding => {
                let binding = counter.binding(&group, grant, server, asked, &session);
                answer::json(StatusCode::OK, &binding, freshness)
            }
        };
        let answer = answer::with_field(
            answer,
            VARY,
            "accept, evenkeel-class, evenkeel-response-time",
        );
        Ok(answer::with_field(
            answer,
            HeaderName::from_static(SESSION),
            &session,
        ))
    }
}

/// Request that was read.
enum Understood {
    /// Question for a member of a cluster.
    Asked(Rc<Counter>, RequestParts),
    /// Answer to a request that takes no decision.
    Answered(Answer),
}

impl Dispatcher {
    /// Asks the chooser of a cluster about a client, unless the client keeps its member.
    async fn ask_chooser(
        &self,
        chooser: &Chooser,
        counter: &Counter,
        wish: &ClientRequest<'_>,
        class: Option<&str>,
    ) -> Option<Advice> {
        let handle = &counter.group.group;
        let group = handle.current.load_full();
        let mut excluded = Vec::new();
        counter.exclude_unreachable(&group, &mut excluded);
        let now = self.clock.now();
        let request = request_to_choose(&group, wish, now, &mut excluded)?;
        let about = About {
            cluster: Some(&counter.cluster.name),
            class,
            ..About::default()
        };
        chooser
            .ask_advice(&handle.current, &request, &about, self)
            .await
    }
}

impl Counter {
    /// Returns the terms of a class, and its place among the counters.
    fn terms(&self, class: Option<&str>) -> Result<(usize, &Terms), Problem> {
        let cluster = &self.cluster;
        let Some(name) = class else {
            return Ok((0, &cluster.terms));
        };
        let mut classes = cluster.classes.iter().enumerate();
        match classes.find(|(_, class)| class.name == name) {
            Some((index, class)) => Ok((index + 1, &class.terms)),
            None => Err(Problem {
                allowed: cluster
                    .classes
                    .iter()
                    .map(|class| class.name.clone())
                    .collect(),
                ..Problem::new(
                    Unheard::UnknownClass,
                    StatusCode::BAD_REQUEST,
                    format!("cluster {:?} has no class {name:?}", cluster.name),
                )
            }),
        }
    }

    /// Returns the origin where clients reach `member` themselves. `None` if there is no such origin, because
    /// the member's name does not resolve, or it is a member no more.
    fn origin(&self, member: &Member) -> Option<Origin> {
        let in_file = member.in_file();
        let is_one_of_several = in_file.len() < member.name.len();
        origin_of(
            self.group.members.get(in_file)?,
            self.cluster.scheme,
            member.address.socket().filter(|_| is_one_of_several),
        )
    }

    /// Has the origins of this very group worked out.
    fn look_up(&self, group: &Arc<Group>) {
        let mut origins = self.origins.borrow_mut();
        if origins
            .as_ref()
            .is_some_and(|origins| Arc::ptr_eq(&origins.of, group))
        {
            return;
        }
        let members = group.members().iter();
        let known: Vec<_> = members.map(|member| self.origin(member)).collect();
        let unreachable = group.members().iter().zip(&known);
        let unreachable = unreachable.filter(|(_, origin)| origin.is_none());
        *origins = Some(Origins {
            of: Arc::clone(group),
            unreachable: unreachable.map(|(member, _)| member.id).collect(),
            known,
        });
    }

    /// Adds the members of `group` without an address that clients can use to those that are excluded.
    fn exclude_unreachable(&self, group: &Arc<Group>, excluded: &mut Vec<MemberId>) {
        self.look_up(group);
        if let Some(origins) = &*self.origins.borrow() {
            excluded.extend(&origins.unreachable);
        }
    }

    /// A member of the group that was looked up, as its clients see it.
    fn server(&self, group: &Group, index: usize) -> Option<Server> {
        let origins = self.origins.borrow();
        let origin = origins.as_ref()?.known.get(index)?.as_ref()?;
        let member = group.members().get(index)?;
        Some(Server {
            name: member.name.to_string(),
            address: member.address.socket()?,
            url: origin.as_str().to_owned(),
        })
    }

    fn binding(
        &self,
        group: &Group,
        grant: Grant,
        server: Server,
        asked: &RequestParts,
        session: &str,
    ) -> Binding {
        let others = grant.alternatives.iter();
        Binding {
            cluster: self.cluster.name.clone(),
            class: asked.class.clone(),
            server,
            quantum_seconds: grant.quantum,
            session: session.to_owned(),
            alternatives: others
                .filter_map(|&index| self.server(group, index))
                .collect(),
        }
    }
}

fn explain(refusal: Refusal) -> String {
    match refusal {
        Refusal::NoMember => "no server of the cluster takes clients now".into(),
        Refusal::ResponseTime(wanted) => {
            format!("no server is known to answer within {wanted:?} on average")
        }
        Refusal::Class(max) => {
            format!("all servers have reached the utilisation limit {max} of this class")
        }
    }
}
