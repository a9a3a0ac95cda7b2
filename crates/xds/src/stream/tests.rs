//! Streams with clients that are simulated: what they say, and what they have in the end.

use proptest::prelude::*;

use super::*;
use crate::content::Content;
use crate::kind::Dialect;
use crate::proto::{Any, Locality, Pair};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// A client as the protocol wants it.
struct Client {
    variant: Variant,
    stream: Stream,
    /// Names that the client wants of each type.
    wants: BTreeMap<Kind, BTreeSet<String>>,
    has: BTreeMap<Kind, BTreeMap<String, Bytes>>,
    /// Nonce of the last answer of each type.
    nonces: BTreeMap<Kind, String>,
    /// Answers that it has not looked at.
    unread: Vec<Answer>,
}

/// An answer as a client reads it.
#[derive(Clone, Debug)]
struct Answer {
    kind: Kind,
    nonce: String,
    version: String,
    resources: Vec<(String, Bytes)>,
    versions: Vec<String>,
    removed: Vec<String>,
}

/// Returns the name in a resource: the first field of all of them.
fn name_of(any: &[u8]) -> String {
    let value = Any::decode(any).unwrap().value;
    let length = usize::from(value[1]);
    String::from_utf8(value[2..2 + length].to_vec()).unwrap()
}

fn node(program: &str) -> Option<Node> {
    Some(Node {
        id: "node-1".into(),
        cluster: "shop".into(),
        locality: Some(Locality::default()),
        user_agent_name: program.into(),
        user_agent_version: "1.2".into(),
        client_features: Vec::new(),
    })
}

fn failed(message: &str) -> Option<Status> {
    Some(Status {
        code: 3,
        message: message.into(),
    })
}

impl Client {
    fn new(variant: Variant, limits: Limits) -> Self {
        Client {
            variant,
            stream: Stream::new(variant, "e1".into(), limits),
            wants: BTreeMap::new(),
            has: BTreeMap::new(),
            nonces: BTreeMap::new(),
            unread: Vec::new(),
        }
    }

    fn say(
        &mut self,
        kind: Kind,
        add: &[&str],
        drop: &[&str],
        error: Option<Status>,
    ) -> RequestMeaning {
        self.say_of(kind, add, drop, None, error)
    }

    /// Says something; `nonce` is that of an answer that it is about.
    fn say_of(
        &mut self,
        kind: Kind,
        add: &[&str],
        drop: &[&str],
        nonce: Option<String>,
        error: Option<Status>,
    ) -> RequestMeaning {
        let wants = self.wants.entry(kind).or_default();
        wants.extend(add.iter().map(|name| (*name).to_owned()));
        wants.retain(|name| !drop.contains(&name.as_str()));
        let bytes = match self.variant {
            Variant::StateOfTheWorld => DiscoveryRequest {
                version_info: String::new(),
                node: node("gRPC C-core"),
                resource_names: wants.iter().cloned().collect(),
                type_url: kind.type_url().into(),
                response_nonce: self.nonces.get(&kind).cloned().unwrap_or_default(),
                error_detail: error,
            }
            .encode_to_vec(),
            Variant::Incremental => {
                let owned = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
                DeltaDiscoveryRequest {
                    node: node("gRPC C-core"),
                    type_url: kind.type_url().into(),
                    resource_names_subscribe: owned(add),
                    resource_names_unsubscribe: owned(drop),
                    initial_resource_versions: Vec::new(),
                    response_nonce: nonce.unwrap_or_default(),
                    error_detail: error,
                }
                .encode_to_vec()
            }
        };
        if !drop.is_empty() {
            let wants = self.wants.entry(kind).or_default();
            let all = wants.contains(ALL);
            let has = self.has.entry(kind).or_default();
            has.retain(|name, _| all || wants.contains(name));
        }
        self.stream.take_request(&bytes).unwrap()
    }

    /// Takes all answers that there are now.
    fn receive(&mut self, world: &ResourceSet) -> Vec<Answer> {
        let mut news = Vec::new();
        while let Some(response) = self.stream.next(world) {
            news.push(read(self.variant, &response));
        }
        self.unread.extend(news.iter().cloned());
        news
    }

    /// Looks at the oldest answer, and accepts it unless there is an error.
    fn read_one(&mut self, error: Option<Status>) -> Option<Answer> {
        if self.unread.is_empty() {
            return None;
        }
        let answer = self.unread.remove(0);
        let kind = answer.kind;
        self.nonces.insert(kind, answer.nonce.clone());
        if error.is_none() {
            let has = self.has.entry(kind).or_default();
            if self.variant == Variant::StateOfTheWorld && kind.is_whole() {
                has.clear();
            }
            let wants = self.wants.entry(kind).or_default();
            let is_wanted = |name: &str| wants.contains(ALL) || wants.contains(name);
            let news = answer.resources.iter().cloned();
            has.extend(news.filter(|(name, _)| is_wanted(name)));
            for name in &answer.removed {
                has.remove(name);
            }
        }
        let refuses = error.is_some();
        let told = self.say_of(kind, &[], &[], Some(answer.nonce.clone()), error);
        let expected = match refuses {
            true => RequestMeaning::Refused(kind),
            false => RequestMeaning::Accepted(kind),
        };
        assert_eq!(told, expected);
        Some(answer)
    }

    /// Exchanges messages until nothing is to be said any more; returns all that was received.
    fn settle(&mut self, world: &ResourceSet) -> Vec<Answer> {
        let mut all = Vec::new();
        loop {
            self.receive(world);
            match self.read_one(None) {
                Some(answer) => all.push(answer),
                None => return all,
            }
            assert!(all.len() < 1000, "it never ends");
        }
    }
}

fn read(variant: Variant, response: &Response) -> Answer {
    match variant {
        Variant::StateOfTheWorld => {
            let read = DiscoveryResponse::decode(response.bytes.clone()).unwrap();
            assert_eq!(read.type_url, response.kind.type_url());
            let resources = read.resources.into_iter();
            Answer {
                kind: response.kind,
                nonce: read.nonce,
                version: read.version_info,
                resources: resources.map(|any| (name_of(&any), any)).collect(),
                versions: Vec::new(),
                removed: Vec::new(),
            }
        }
        Variant::Incremental => {
            let read = DeltaDiscoveryResponse::decode(response.bytes.clone()).unwrap();
            assert_eq!(read.type_url, response.kind.type_url());
            let versions = read.resources.iter().map(|one| one.version.clone());
            let versions = versions.collect();
            let resources = read.resources.into_iter();
            let resources = resources.map(|one| {
                assert_eq!(name_of(&one.resource), one.name);
                (one.name, one.resource)
            });
            Answer {
                kind: response.kind,
                nonce: read.nonce,
                version: read.system_version_info,
                resources: resources.collect(),
                versions,
                removed: read.removed_resources,
            }
        }
    }
}

fn cluster(seconds: u64) -> Content {
    Content::Cluster(crate::content::Cluster {
        policy: evenkeel_config::XdsPolicy::Weights,
        http2: false,
        tls: false,
        reports: false,
        connect_timeout: std::time::Duration::from_secs(seconds),
    })
}

/// Returns a content of that type, of which there are a few.
fn content(kind: Kind, which: u32) -> Content {
    match kind {
        Kind::Cluster => cluster(u64::from(which)),
        Kind::Endpoints => Content::of_weights(&[which, 5]),
        Kind::Listener => Content::Listener,
        Kind::Route => Content::Route,
    }
}

fn set(world: &mut ResourceSet, name: &str, which: u32) {
    for &kind in Kind::ALL {
        world.set(kind, &name.into(), content(kind, which));
    }
}

fn world() -> ResourceSet {
    let mut world = ResourceSet::default();
    for name in ["a", "b", "c"] {
        set(&mut world, name, 1);
    }
    world
}

fn names(answer: &Answer) -> Vec<&str> {
    let names = answer.resources.iter();
    names.map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_change_of_one_group_sends_its_endpoints_and_nothing_else() {
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut world = world();
        let mut client = Client::new(variant, Limits::default());
        client.say(Kind::Cluster, &[ALL], &[], None);
        let first = client.settle(&world);
        assert_eq!(first.len(), 1, "{first:?}");
        assert_eq!(names(&first[0]), ["a", "b", "c"]);
        client.say(Kind::Endpoints, &["a", "b"], &[], None);
        let second = client.settle(&world);
        assert_eq!(names(&second[0]), ["a", "b"]);
        assert!(client.settle(&world).is_empty());
        // Nobody wants c.
        world.set(Kind::Endpoints, &"c".into(), Content::of_weights(&[7]));
        assert!(client.settle(&world).is_empty());
        world.set(Kind::Endpoints, &"b".into(), Content::of_weights(&[7]));
        let third = client.settle(&world);
        assert_eq!(third.len(), 1, "{third:?}");
        assert_eq!(third[0].kind, Kind::Endpoints);
        assert_eq!(names(&third[0]), ["b"]);
        let identity = client.stream.identity().unwrap();
        assert_eq!(
            (&*identity.node, &*identity.service, &*identity.program),
            ("node-1", "shop", "gRPC C-core 1.2")
        );
        assert_eq!(identity.audience.dialect, Dialect::Grpc);
    }
}

#[test]
fn there_is_one_answer_at_a_time_with_the_newest() {
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut world = world();
        let mut client = Client::new(variant, Limits::default());
        client.say(Kind::Endpoints, &["a"], &[], None);
        assert_eq!(client.receive(&world).len(), 1);
        for weight in 10..20 {
            world.set(Kind::Endpoints, &"a".into(), Content::of_weights(&[weight]));
            assert!(client.receive(&world).is_empty());
        }
        client.read_one(None);
        assert_eq!(client.receive(&world).len(), 1);
        client.read_one(None);
        assert!(client.receive(&world).is_empty());
        let audience = client.stream.identity().unwrap().audience.clone();
        let newest = world
            .find_resource(Kind::Endpoints, "a", &audience)
            .unwrap()
            .any;
        assert_eq!(client.has[&Kind::Endpoints]["a"], newest);
    }
}

#[test]
fn a_refused_answer_is_told_and_not_sent_again() {
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut world = world();
        let mut client = Client::new(variant, Limits::default());
        client.say(Kind::Cluster, &[ALL], &[], None);
        let first = client.settle(&world).remove(0);
        world.set(Kind::Cluster, &"a".into(), cluster(9));
        let second = client.receive(&world).remove(0);
        assert_ne!(first.version, second.version);
        client.read_one(failed("bad\ncluster"));
        let of = client.stream.subscription(Kind::Cluster).unwrap();
        assert_eq!(of.accepted_version(), Some(&*first.version));
        let nack = of.last_nack().unwrap();
        assert_eq!(
            (&*nack.version, &*nack.reason),
            (&*second.version, "bad cluster")
        );
        assert_eq!(
            (of.push_count(), of.nack_count(), of.pending_version()),
            (2, 1, None)
        );
        assert!(client.receive(&world).is_empty(), "no loop");
        // What has changed since is.
        world.set(Kind::Cluster, &"a".into(), cluster(10));
        let third = client.receive(&world).remove(0);
        client.read_one(None);
        let of = client.stream.subscription(Kind::Cluster).unwrap();
        assert_eq!(of.accepted_version(), Some(&*third.version));
        assert_eq!(
            of.last_nack().map(|nack| &*nack.version),
            Some(&*second.version)
        );
    }
}

#[test]
fn what_is_wanted_and_not_there_is_said_as_far_as_the_protocol_can() {
    let world = world();
    let mut client = Client::new(Variant::StateOfTheWorld, Limits::default());
    client.say(Kind::Listener, &["nobody"], &[], None);
    client.say(Kind::Endpoints, &["nobody"], &[], None);
    let answers = client.settle(&world);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].kind, Kind::Listener);
    assert!(answers[0].resources.is_empty());
    let mut client = Client::new(Variant::Incremental, Limits::default());
    client.say(Kind::Endpoints, &["nobody", "a"], &[], None);
    let answers = client.settle(&world);
    assert_eq!(answers[0].removed, ["nobody"]);
    assert_eq!(names(&answers[0]), ["a"]);
}

#[test]
fn a_client_of_grpc_that_wants_nothing_any_more_does_not_want_all() {
    let mut world = world();
    let mut client = Client::new(Variant::StateOfTheWorld, Limits::default());
    client.say(Kind::Cluster, &["a"], &[], None);
    assert_eq!(names(&client.settle(&world)[0]), ["a"]);
    client.say(Kind::Cluster, &[], &["a"], None);
    set(&mut world, "a", 2);
    assert!(client.settle(&world).is_empty());
    let of = client.stream.subscription(Kind::Cluster).unwrap();
    assert!(!of.is_wildcard() && of.name_count() == 0);
    // One that never names anything wants all.
    let mut client = Client::new(Variant::StateOfTheWorld, Limits::default());
    client.say(Kind::Cluster, &[], &[], None);
    client
        .wants
        .entry(Kind::Cluster)
        .or_default()
        .insert(ALL.into());
    assert_eq!(client.receive(&world)[0].resources.len(), 3);
    // But there is no such thing for endpoints.
    let mut client = Client::new(Variant::StateOfTheWorld, Limits::default());
    client.say(Kind::Endpoints, &[], &[], None);
    assert!(client.receive(&world).is_empty());
}

#[test]
fn endpoints_of_a_cluster_that_has_changed_come_after_it() {
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut world = world();
        let mut client = Client::new(variant, Limits::default());
        client.say(Kind::Cluster, &[ALL], &[], None);
        client.say(Kind::Endpoints, &["a", "b"], &[], None);
        client.settle(&world);
        world.set(Kind::Cluster, &"a".into(), cluster(9));
        let answers = client.settle(&world);
        let kinds: Vec<_> = answers.iter().map(|answer| answer.kind).collect();
        assert_eq!(kinds, [Kind::Cluster, Kind::Endpoints]);
        assert_eq!(names(&answers[1]), ["a"]);
    }
}

#[test]
fn what_a_client_has_from_before_is_not_sent_again() {
    let mut world = world();
    let mut before = Client::new(Variant::Incremental, Limits::default());
    before.say(Kind::Endpoints, &["a", "b", "c"], &[], None);
    let had = before.settle(&world).remove(0);
    set(&mut world, "b", 2);
    for &kind in Kind::ALL {
        world.remove(kind, "c");
    }
    let pairs = had.resources.iter().zip(&had.versions);
    let pairs = pairs.map(|((name, _), version)| Pair {
        key: name.clone(),
        value: version.clone(),
    });
    let request = DeltaDiscoveryRequest {
        node: node("gRPC"),
        type_url: Kind::Endpoints.type_url().into(),
        resource_names_subscribe: ["a", "b", "c"].map(Into::into).into(),
        initial_resource_versions: pairs.collect(),
        ..DeltaDiscoveryRequest::default()
    };
    let mut stream = Stream::new(Variant::Incremental, "e2".into(), Limits::default());
    stream.take_request(&request.encode_to_vec()).unwrap();
    let answer = read(Variant::Incremental, &stream.next(&world).unwrap());
    assert_eq!(names(&answer), ["b"]);
    assert_eq!(answer.removed, ["c"]);
    assert_eq!(stream.next(&world), None);
    // A client that has forgotten one says so by wanting it once more.
    let request = DeltaDiscoveryRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names_subscribe: vec!["a".into()],
        response_nonce: answer.nonce,
        ..DeltaDiscoveryRequest::default()
    };
    let told = stream.take_request(&request.encode_to_vec());
    assert_eq!(told, Ok(RequestMeaning::Accepted(Kind::Endpoints)));
    let answer = read(Variant::Incremental, &stream.next(&world).unwrap());
    assert_eq!(names(&answer), ["a"]);
}

#[test]
fn large_answers_come_in_parts() {
    let mut world = ResourceSet::default();
    for index in 0..100 {
        let name: Arc<str> = format!("g{index:02}").into();
        world.set(Kind::Endpoints, &name, Content::of_weights(&[1; 50]));
    }
    let audience = Identity::of_node(&node("gRPC").unwrap()).audience;
    let one = world
        .find_resource(Kind::Endpoints, "g00", &audience)
        .unwrap()
        .any
        .len();
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let limits = Limits {
            response: one * 30,
            ..Limits::default()
        };
        let mut client = Client::new(variant, limits);
        let wanted: Vec<String> = (0..100).map(|index| format!("g{index:02}")).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        client.say(Kind::Endpoints, &wanted, &[], None);
        let sizes: Vec<_> = client
            .settle(&world)
            .iter()
            .map(|a| a.resources.len())
            .collect();
        assert_eq!(sizes, [30, 30, 30, 10]);
    }
}

#[test]
fn what_is_too_much_or_no_message_ends_the_stream() {
    let limits = Limits {
        subscriptions: 3,
        ..Limits::default()
    };
    for variant in [Variant::StateOfTheWorld, Variant::Incremental] {
        let mut stream = Stream::new(variant, "e".into(), limits);
        assert_eq!(
            stream.take_request(b"\xff\xff"),
            Err(StreamRefusal::Malformed)
        );
        let names: Vec<String> = ["a", "b", "c", "d"].map(Into::into).into();
        let bytes = match variant {
            Variant::StateOfTheWorld => DiscoveryRequest {
                resource_names: names,
                type_url: Kind::Route.type_url().into(),
                ..DiscoveryRequest::default()
            }
            .encode_to_vec(),
            Variant::Incremental => DeltaDiscoveryRequest {
                resource_names_subscribe: names,
                type_url: Kind::Route.type_url().into(),
                ..DeltaDiscoveryRequest::default()
            }
            .encode_to_vec(),
        };
        assert_eq!(stream.take_request(&bytes), Err(StreamRefusal::TooMany(3)));
    }
    let mut stream = Stream::new(Variant::StateOfTheWorld, "e".into(), limits);
    let other = DiscoveryRequest {
        type_url: "type.googleapis.com/envoy.service.runtime.v3.Runtime".into(),
        ..DiscoveryRequest::default()
    };
    assert_eq!(
        stream.take_request(&other.encode_to_vec()),
        Ok(RequestMeaning::Unknown)
    );
    assert_eq!(stream.next(&world()), None);
}

/// Event of a test.
#[derive(Clone, Debug)]
enum Event {
    Set(Kind, usize, u32),
    Remove(Kind, usize),
    Want(Kind, usize),
    Unwant(Kind, usize),
    /// All answers until now arrive.
    Receive,
    /// The client accepts the oldest answer.
    Accept,
}

fn event() -> impl proptest::strategy::Strategy<Value = Event> {
    let kind = || prop::sample::select(Kind::ALL.to_vec());
    prop_oneof![
        4 => (kind(), 0..NAMES.len(), 1u32..6).prop_map(|(kind, name, which)| Event::Set(kind, name, which)),
        1 => (kind(), 0..NAMES.len()).prop_map(|(kind, name)| Event::Remove(kind, name)),
        // The last one is all of them.
        3 => (kind(), 0..=NAMES.len()).prop_map(|(kind, name)| Event::Want(kind, name)),
        1 => (kind(), 0..=NAMES.len()).prop_map(|(kind, name)| Event::Unwant(kind, name)),
        4 => Just(Event::Receive),
        4 => Just(Event::Accept),
    ]
}

fn variant() -> impl proptest::strategy::Strategy<Value = Variant> {
    prop_oneof![Just(Variant::StateOfTheWorld), Just(Variant::Incremental)]
}

proptest! {
    /// In whatever order things are wanted, change and arrive: in the end a client has what it wants as it
    /// is, with nothing more to be said, and a change is sent alone.
    #[test]
    fn in_the_end_a_client_has_what_it_wants(
        variant in variant(),
        response in prop_oneof![Just(100usize), Just(1 << 20)],
        events in prop::collection::vec(event(), 0..60),
    ) {
        let mut world = ResourceSet::default();
        let limits = Limits { response, ..Limits::default() };
        let mut client = Client::new(variant, limits);
        for event in events {
            let named = |name: usize| NAMES.get(name).copied().unwrap_or(ALL);
            match event {
                Event::Set(kind, name, which) => {
                    world.set(kind, &named(name).into(), content(kind, which));
                }
                Event::Remove(kind, name) => {
                    world.remove(kind, named(name));
                }
                Event::Want(kind, name) => {
                    client.say(kind, &[named(name)], &[], None);
                }
                Event::Unwant(kind, name) => {
                    let name = named(name);
                    // Nobody says that of what it does not want.
                    if client.wants.get(&kind).is_some_and(|wants| wants.contains(name)) {
                        client.say(kind, &[], &[name], None);
                    }
                }
                Event::Receive => {
                    client.receive(&world);
                }
                Event::Accept => {
                    client.read_one(None);
                }
            }
        }
        client.settle(&world);
        let Some(identity) = client.stream.identity().cloned() else {
            return Ok(());
        };
        for &kind in Kind::ALL {
            let wants = client.wants.get(&kind).cloned().unwrap_or_default();
            let expected: BTreeMap<String, Bytes> = world
                .resource_names(kind)
                .filter(|name| wants.contains(ALL) || wants.contains(&***name))
                .map(|name| (name.to_string(), world.find_resource(kind, name, &identity.audience).unwrap().any))
                .collect();
            let mut has = client.has.get(&kind).cloned().unwrap_or_default();
            if variant == Variant::StateOfTheWorld && !kind.is_whole() {
                // There is no way to say that such a resource is gone.
                has.retain(|name, _| world.has_resource(kind, name));
            }
            prop_assert_eq!(has, expected, "{:?}", kind);
        }
        prop_assert!(client.receive(&world).is_empty());
        // A change of one resource sends that one, or all of its type where it has to be.
        for &kind in &[Kind::Cluster, Kind::Endpoints] {
            let all = client.wants.get(&kind).is_some_and(|wants| wants.contains(ALL));
            let is_wanted = all || client.wants.get(&kind).is_some_and(|wants| wants.contains("a"));
            world.set(kind, &"a".into(), content(kind, 77));
            let answers = client.settle(&world);
            prop_assert_eq!(!answers.is_empty(), is_wanted);
            for answer in answers {
                let alone = answer.kind != Kind::Cluster || variant == Variant::Incremental;
                if alone {
                    prop_assert_eq!(names(&answer), ["a"]);
                }
            }
        }
    }

    /// Any bytes.
    #[test]
    fn no_bytes_do_harm(
        variant in variant(),
        requests in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..8),
    ) {
        let world = world();
        let mut stream = Stream::new(variant, "e".into(), Limits::default());
        for request in requests {
            let _ = stream.take_request(&request);
            let _ = stream.next(&world);
        }
    }
}

#[test]
fn n5_names_have_a_length_and_what_they_take_is_counted() {
    let incremental = |subscribe: &[String], unsubscribe: &[String]| DeltaDiscoveryRequest {
        type_url: Kind::Endpoints.type_url().into(),
        resource_names_subscribe: subscribe.to_vec(),
        resource_names_unsubscribe: unsubscribe.to_vec(),
        ..DeltaDiscoveryRequest::default()
    };
    let stream = |variant| Stream::new(variant, "x".into(), Limits::default());
    let long = "n".repeat(LONGEST_RESOURCE + 1);
    let longest = "n".repeat(LONGEST_RESOURCE);
    let mut delta = stream(Variant::Incremental);
    let mut ask = |subscribe: &[String], unsubscribe: &[String]| {
        let request = incremental(subscribe, unsubscribe).encode_to_vec();
        let told = delta.take_request(&request);
        (told, delta.held_bytes())
    };
    let one = NAME_BYTES + LONGEST_RESOURCE;
    assert_eq!(
        ask(std::slice::from_ref(&longest), &[]),
        (Ok(RequestMeaning::Nothing), one)
    );
    // However often it is wanted.
    assert_eq!(
        ask(std::slice::from_ref(&longest), &[]),
        (Ok(RequestMeaning::Nothing), one)
    );
    let two = one + NAME_BYTES + 1;
    assert_eq!(ask(&["a".into()], &[]), (Ok(RequestMeaning::Nothing), two));
    assert_eq!(
        ask(&["b".into(), long.clone()], &[]),
        (Err(StreamRefusal::LongName), two)
    );
    let gone = [longest.clone(), "a".into(), "c".into()];
    assert_eq!(ask(&[], &gone), (Ok(RequestMeaning::Nothing), 0));

    let mut before = incremental(&[], &[]);
    before.initial_resource_versions = vec![Pair {
        key: long.clone(),
        value: "1".into(),
    }];
    let told = stream(Variant::Incremental).take_request(&before.encode_to_vec());
    assert_eq!(told, Err(StreamRefusal::LongName));
    before.initial_resource_versions[0].key = longest.clone();
    let mut has = stream(Variant::Incremental);
    assert_eq!(
        has.take_request(&before.encode_to_vec()),
        Ok(RequestMeaning::Nothing)
    );
    assert_eq!(has.held_bytes(), one);

    let mut world = stream(Variant::StateOfTheWorld);
    let mut ask = |names: &[String]| {
        let request = DiscoveryRequest {
            type_url: Kind::Endpoints.type_url().into(),
            resource_names: names.to_vec(),
            ..DiscoveryRequest::default()
        };
        (
            world.take_request(&request.encode_to_vec()),
            world.held_bytes(),
        )
    };
    assert_eq!(
        ask(&[longest, "a".into()]),
        (Ok(RequestMeaning::Nothing), two)
    );
    assert_eq!(
        ask(&["a".into()]),
        (Ok(RequestMeaning::Nothing), NAME_BYTES + 1)
    );
    assert_eq!(ask(&[long]), (Err(StreamRefusal::LongName), NAME_BYTES + 1));
}
