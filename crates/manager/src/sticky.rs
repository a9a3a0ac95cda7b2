//! Cookies that bind clients to members: what is in them, and which member each one names. A header field may take the
//! place of the cookie.
//!
//! A cookie's value is a message authentication code of the names of group and member, and two
//! characters that tell when its client leaves in a load alert. Clients of a member share the first
//! part, so that nobody can be followed by it, and nothing is kept here of any client. All
//! balancers with the same key make, and know, the same values.
//!
//! Where bindings have a longest life, or a longest time without a request, two times follow, which are in no code: a
//! client that changes them does no more than stay with its member.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_core::group::Group;
use evenkeel_core::member::MemberId;
use evenkeel_net::key_file;

use crate::config::{Problem, SameSite, SharedGroup, Sticky};

/// Cookies of groups that bind clients by one, by the groups' names.
pub type Cookies = HashMap<String, Arc<Cookie>>;

/// Shortest secret, in bytes.
const MIN_SECRET: usize = 32;

/// Bytes of the code of a member: enough that nobody guesses one.
const CODE: usize = 18;

/// Number of characters of the code.
const TEXT: usize = CODE / 3 * 4;

/// Characters of a turn, and how many there are.
const TURN: usize = 2;
const TURNS: u16 = 1 << (6 * TURN);

/// Reads the keys of the cookies of `groups`. If nothing has changed, the cookie that is `known` stays.
///
/// # Errors
///
/// All that is wrong, with the places in the configuration.
pub fn load(groups: &[SharedGroup], known: &Cookies) -> Result<Cookies, Vec<Problem>> {
    let (mut cookies, mut errors) = (Cookies::new(), Vec::new());
    for group in groups {
        let Some(config) = &group.sticky else {
            continue;
        };
        match secret(config) {
            Ok(secret) => {
                let cookie = Cookie::new(&group.name, config, &secret);
                let known = known
                    .get(&group.name)
                    .filter(|known| known.is_like(&cookie));
                let cookie = known.cloned().unwrap_or_else(|| Arc::new(cookie));
                cookies.insert(group.name.clone(), cookie);
            }
            Err(problem) => errors.push(*problem),
        }
    }
    match errors.is_empty() {
        true => Ok(cookies),
        false => Err(errors),
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "has {0} bytes, but a key needs at least {MIN_SECRET}: write one with `openssl rand -base64 48`"
)]
struct TooShort(usize);

fn secret(config: &Sticky) -> Result<Vec<u8>, Box<Problem>> {
    let Some(file) = &config.key_file else {
        return Ok(secret_of_process().to_vec());
    };
    let parse = |text: &str| match text.trim() {
        short if short.len() < MIN_SECRET => Err(TooShort(short.len())),
        secret => Ok(secret.as_bytes().to_vec()),
    };
    key_file::load_parsed(&file.path, parse)
        .map_err(|error| Box::new(file.place.problem(error.to_string())))
}

/// The key of cookies without a key file.
fn secret_of_process() -> &'static [u8; MIN_SECRET] {
    static SECRET: OnceLock<[u8; MIN_SECRET]> = OnceLock::new();
    SECRET.get_or_init(|| {
        let mut secret = [0; MIN_SECRET];
        // It only fails where the system has no randomness, and then no cookie may be made.
        let filled = aws_lc_rs::rand::fill(&mut secret);
        assert!(filled.is_ok(), "the system has no random numbers");
        secret
    })
}

/// Bytes of the times of a binding, and characters of their text.
const TIMES: usize = 8;
const TIMES_TEXT: usize = 11;

/// Times of a binding, in seconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingTimes {
    /// Time at which the client was bound.
    pub since: u32,
    /// Time of the client's last request.
    pub used: u32,
}

impl BindingTimes {
    /// Returns the times of a client that is bound now.
    pub fn new(now: u32) -> Self {
        BindingTimes {
            since: now,
            used: now,
        }
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (since, used) = bytes.split_first_chunk::<4>()?;
        Some(BindingTimes {
            since: u32::from_be_bytes(*since),
            used: u32::from_be_bytes(used.try_into().ok()?),
        })
    }

    fn write(self, text: &mut String) {
        let mut bytes = [0; TIMES];
        let (since, used) = bytes.split_at_mut(TIMES / 2);
        since.copy_from_slice(&self.since.to_be_bytes());
        used.copy_from_slice(&self.used.to_be_bytes());
        URL_SAFE_NO_PAD.encode_string(bytes, text);
    }
}

/// The cookie of a group, or the header field in its place.
pub struct Cookie {
    group: Box<str>,
    config: Sticky,
    name: Box<str>,
    /// Attributes that follow the value in `Set-Cookie`, but for `Max-Age` and `Secure`.
    attributes: Box<str>,
    key: hmac::Key,
    /// The code of nothing: keys are the same that have the same.
    print: Code,
    members: ArcSwap<Members>,
}

/// The code of a member, as it stands in the cookie.
type Code = [u8; TEXT];

/// The members of a snapshot.
struct Members {
    /// Snapshot of the group that the codes belong to; none before the first one.
    of: Option<Arc<Group>>,
    by_code: HashMap<Code, usize>,
    codes: HashMap<MemberId, Code>,
}

/// Contents of a client's cookie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Named {
    /// The member that the client is bound to.
    pub member: MemberId,
    /// Place that the member had in the group.
    pub index: usize,
    /// Part of a load alert, from 0 to 1, that the client stays for.
    pub alert_share: f32,
    /// Random number that says the same as `alert_share`.
    pub turn: u16,
    /// Times of the binding.
    pub times: BindingTimes,
    /// True if the client is to be told a new time of its last request.
    pub is_stale: bool,
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Cookie");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Cookie {
    fn new(group: &str, config: &Sticky, secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let same_site = match config.same_site {
            SameSite::Strict => "Strict",
            SameSite::Lax => "Lax",
            SameSite::None => "None",
        };
        let path = &config.cookie_path;
        let attributes = format!("; Path={path}; HttpOnly; SameSite={same_site}");
        Cookie {
            group: group.into(),
            name: config.name_of(group).into(),
            attributes: attributes.into(),
            config: config.clone(),
            print: code(&key, &[]),
            key,
            members: ArcSwap::from_pointee(Members {
                of: None,
                by_code: HashMap::new(),
                codes: HashMap::new(),
            }),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.group == other.group && self.config == other.config && self.print == other.print
    }

    /// Returns the name of the cookie, or of the field.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if a header field takes the place of the cookie.
    pub fn is_header(&self) -> bool {
        self.config.header.is_some()
    }

    /// True if the times of bindings count.
    pub fn has_times(&self) -> bool {
        self.config.max_life.is_some() || self.config.max_idle.is_some()
    }

    /// True if a binding with these times holds `now`. The clocks of two balancers may differ.
    fn is_alive(&self, times: BindingTimes, now: u32) -> bool {
        let has_left = |limit: Option<Duration>, since: u32| {
            limit.is_none_or(|limit| u64::from(now.saturating_sub(since)) <= limit.as_secs())
        };
        has_left(self.config.max_life, times.since) && has_left(self.config.max_idle, times.used)
    }

    /// Takes over the members of a snapshot.
    pub fn update_members(&self, group: &Arc<Group>) {
        let members = self.members.load();
        if members.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, group)) {
            return;
        }
        let mut next = Members {
            of: Some(Arc::clone(group)),
            by_code: HashMap::new(),
            codes: HashMap::new(),
        };
        for (index, member) in group.members().iter().enumerate() {
            // A name without an address.
            if member.address.ip().is_some_and(|ip| ip.is_unspecified()) {
                continue;
            }
            // The address, not the name: that of a name with several addresses depends on how many
            // there are.
            let address = member.address.to_string();
            let code = code(&self.key, &[&self.group, &address]);
            next.by_code.entry(code).or_insert(index);
            next.codes.insert(member.id, code);
        }
        self.members.store(Arc::new(next));
    }

    /// The member that the cookie of a client with this value names. The time `now` is in seconds since 1970; it only
    /// counts if bindings have times.
    pub fn find(&self, value: &[u8], now: u32) -> Option<Named> {
        let (code, rest) = value.split_first_chunk::<TEXT>()?;
        let (turn, times) = rest.split_first_chunk::<TURN>()?;
        let turn = turn_of(*turn)?;
        let times = match (self.has_times(), times.len()) {
            (false, 0) => BindingTimes::new(now),
            (true, TIMES_TEXT) => BindingTimes::parse(times)?,
            _ => return None,
        };
        if !self.is_alive(times, now) {
            return None;
        }
        let members = self.members.load();
        let index = *members.by_code.get(code)?;
        let member = members.of.as_ref()?.members().get(index)?.id;
        Some(Named {
            member,
            index,
            alert_share: f32::from(turn) / f32::from(TURNS),
            turn,
            times,
            is_stale: self.config.max_idle.is_some() && times.used != now,
        })
    }

    /// The value of `Set-Cookie`, or of the field, for a client that is bound to `member` since and until `times`; `None`
    /// if the member is not in the group any more. `secure` says that the client's connection is TLS. `turn` is a random
    /// number.
    pub fn set(
        &self,
        member: MemberId,
        secure: bool,
        turn: u16,
        times: BindingTimes,
    ) -> Option<String> {
        let members = self.members.load();
        let code = str::from_utf8(members.codes.get(&member)?).ok()?;
        let turn = URL_SAFE_NO_PAD.encode([(turn >> 4) as u8, (turn << 4) as u8]);
        let turn = turn.get(..TURN)?;
        let mut text = match self.is_header() {
            true => format!("{code}{turn}"),
            false => format!("{}={code}{turn}", self.name),
        };
        if self.has_times() {
            times.write(&mut text);
        }
        if self.is_header() {
            return Some(text);
        }
        text += &self.attributes;
        if let Some(max_age) = self.config.max_age {
            let spent = times.used.saturating_sub(times.since);
            let left = max_age.as_secs().saturating_sub(spent.into());
            text += &format!("; Max-Age={left}");
        }
        if secure || self.config.secure {
            text += "; Secure";
        }
        Some(text)
    }
}

/// The turn that two characters stand for.
fn turn_of(text: [u8; TURN]) -> Option<u16> {
    let [first, second] = text;
    let bytes = URL_SAFE_NO_PAD.decode([first, second, b'A', b'A']).ok()?;
    let (high, low) = (u16::from(*bytes.first()?), u16::from(*bytes.get(1)?));
    Some(high << 4 | low >> 4)
}

/// The code of `parts`, which is another one for other parts.
fn code(key: &hmac::Key, parts: &[&str]) -> Code {
    let mut context = hmac::Context::with_key(key);
    for part in parts {
        // Names have no NUL.
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let tag = context.sign();
    let mut code = [b'A'; TEXT];
    let encoded = tag
        .as_ref()
        .get(..CODE)
        .map(|tag| URL_SAFE_NO_PAD.encode_slice(tag, &mut code));
    debug_assert_eq!(encoded, Some(Ok(TEXT)));
    code
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use evenkeel_core::group::GroupSettings;
    use evenkeel_core::load::Location;
    use evenkeel_core::member::{Member, Slot, Weight};
    use evenkeel_core::strategy::{Values, default_kind};

    use super::*;

    fn group(name: &str, hosts: &[u8]) -> Arc<Group> {
        let member = |(index, host): (usize, &u8)| Member {
            id: MemberId(index as u64),
            name: format!("m{host}").into(),
            given_name: None,
            address: std::net::SocketAddr::from(([192, 0, 2, *host], 80)).into(),
            host: "a".into(),
            max_connections: None,
            location: Arc::new(Location::new("l")),
            zone: None,
            slot: Arc::new(Slot::new(Weight::ONE)),
        };
        let members = hosts.iter().enumerate().map(member).collect();
        let strategy = Values::defaults(default_kind());
        let settings = GroupSettings::default();
        Arc::new(Group::new(
            name,
            settings,
            &strategy,
            members,
            Arc::default(),
        ))
    }

    const NOW: BindingTimes = BindingTimes { since: 0, used: 0 };

    fn cookie(name: &str, secret: &[u8], hosts: &[u8]) -> Cookie {
        cookie_of(&Sticky::default(), name, secret, hosts)
    }

    fn cookie_of(sticky: &Sticky, name: &str, secret: &[u8], hosts: &[u8]) -> Cookie {
        let cookie = Cookie::new(name, sticky, secret);
        cookie.update_members(&group(name, hosts));
        cookie
    }

    /// The value of the cookie for the member with this id.
    fn value(cookie: &Cookie, id: u64, turn: u16) -> String {
        let set = cookie.set(MemberId(id), false, turn, NOW).unwrap();
        let (pair, attributes) = set.split_once(';').unwrap();
        assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax");
        let (name, value) = pair.split_once('=').unwrap();
        assert_eq!(name, cookie.name());
        assert_eq!(value.len(), TEXT + TURN);
        value.to_owned()
    }

    #[test]
    fn balancers_with_one_key_know_each_others_cookies() {
        let secret = [7; MIN_SECRET];
        let one = cookie("g", &secret, &[1, 2, 3]);
        // Members have other numbers and places there, and one is new.
        let other = cookie("g", &secret, &[9, 3, 2, 1]);
        let member = |id, turn| {
            other
                .find(value(&one, id, turn).as_bytes(), 0)
                .map(|named| named.member)
        };
        assert_eq!(
            [0, 1, 2].map(|id| member(id, 5)),
            [3, 2, 1].map(|id| Some(MemberId(id)))
        );
        assert!(
            one.find(value(&other, 0, 5).as_bytes(), 0).is_none(),
            "it is not there"
        );
        for (name, secret) in [("h", &secret), ("g", &[8; MIN_SECRET])] {
            let foreign = cookie(name, secret, &[1, 2, 3]);
            assert!(foreign.find(value(&one, 0, 5).as_bytes(), 0).is_none());
        }
        // What the value is must not change: it is in browsers.
        assert_eq!(value(&one, 0, 0), "Zsuzq0lpQOyqZT8ab2l2J1CwAA");
    }

    #[test]
    fn a_binding_ends_with_its_life_or_when_its_client_is_idle() {
        let hour = |hours: u64| Some(Duration::from_secs(3600 * hours));
        let sticky = Sticky {
            header: Some("X-Session".into()),
            max_life: hour(8),
            max_idle: hour(1),
            ..Sticky::default()
        };
        let field = cookie_of(&sticky, "g", &[7; MIN_SECRET], &[1, 2]);
        let start = 1_800_000_000;
        let at = |hours: u32| start + 3600 * hours;
        let value = field.set(MemberId(1), true, 9, BindingTimes::new(start));
        let mut value = value.unwrap();
        assert_eq!(value.len(), TEXT + TURN + TIMES_TEXT);
        assert!(!field.find(value.as_bytes(), start).unwrap().is_stale);
        // A clock that is behind is no reason to bind anew.
        assert!(field.find(value.as_bytes(), start - 60).is_some());
        assert!(field.find(value.as_bytes(), at(1)).is_some());
        assert_eq!(field.find(value.as_bytes(), at(1) + 1), None);
        for hours in 1..=8 {
            let found = field.find(value.as_bytes(), at(hours)).unwrap();
            assert!(found.is_stale && found.turn == 9 && found.member == MemberId(1));
            let times = BindingTimes {
                used: at(hours),
                ..found.times
            };
            value = field.set(MemberId(1), true, found.turn, times).unwrap();
        }
        assert_eq!(field.find(value.as_bytes(), at(8) + 1), None);

        // Without times, and without one of them, other values are made.
        let plain = cookie("g", &[7; MIN_SECRET], &[1, 2]);
        assert_eq!(plain.find(value.as_bytes(), at(8)), None);
        let short = &value.as_bytes()[..TEXT + TURN];
        assert!(plain.find(short, at(8)).is_some());
        assert_eq!(field.find(short, at(8)), None);
        for end in TEXT + TURN + 1..value.len() {
            assert_eq!(field.find(&value.as_bytes()[..end], at(8)), None);
        }
        let lasting = Sticky {
            header: None,
            max_idle: None,
            max_age: hour(8),
            ..sticky
        };
        let lasting = cookie_of(&lasting, "g", &[7; MIN_SECRET], &[1, 2]);
        let times = BindingTimes {
            since: start,
            used: at(3),
        };
        let set = lasting.set(MemberId(0), true, 1, times).unwrap();
        assert!(set.ends_with("; Max-Age=18000; Secure"), "{set}");
        let (_, value) = set.split_once('=').unwrap();
        let (value, _) = value.split_once(';').unwrap();
        assert!(!lasting.find(value.as_bytes(), at(5)).unwrap().is_stale);
    }

    #[test]
    fn a_turn_is_one_of_4096_parts_of_an_alert() {
        let cookie = cookie("g", &[7; MIN_SECRET], &[1]);
        for turn in [0, 1, 63, 64, 2048, 4095] {
            let found = cookie.find(value(&cookie, 0, turn).as_bytes(), 0).unwrap();
            assert_eq!(found.alert_share, f32::from(turn) / 4096.0);
        }
        // Random numbers beyond that wrap.
        assert_eq!(value(&cookie, 0, 4097), value(&cookie, 0, 1));
    }

    #[test]
    fn what_is_no_value_names_nobody() {
        let cookie = cookie("g", &[7; MIN_SECRET], &[1, 2]);
        let good = value(&cookie, 1, 77);
        assert!(cookie.find(good.as_bytes(), 0).is_some());
        for at in 0..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] = b'!';
            assert_eq!(cookie.find(&bad, 0), None);
            assert_eq!(cookie.find(&good.as_bytes()[..at], 0), None);
        }
        for bad in [b"".as_slice(), b"\xff", &[b'A'; 26], &[b'A'; 100_000]] {
            assert_eq!(cookie.find(bad, 0), None);
        }
        assert_eq!(cookie.find(format!("{good}A").as_bytes(), 0), None);
    }

    #[test]
    fn a_cookie_follows_members_and_is_replaced_only_if_it_is_another_one() {
        let config = |sticky: &str| {
            let text = format!(
                "[rule.w]\nlisten = \"127.0.0.1:80\"\nmembers = [\"192.0.2.1:80\"]\n{sticky}"
            );
            crate::config::parse("t", &text).unwrap().groups
        };
        let groups = config("sticky = true");
        let first = load(&groups, &Cookies::new()).unwrap();
        first["w"].update_members(&group("w", &[1]));
        let again = load(&groups, &first).unwrap();
        assert!(Arc::ptr_eq(&first["w"], &again["w"]));
        // Without a file the key is that of the process.
        let old = value(&first["w"], 0, 1);
        let other = load(&config("sticky = { cookie = \"x\", secure = true, same_site = \"none\", cookie_path = \"/a\", max_age = \"1h\" }"), &first).unwrap();
        other["w"].update_members(&group("w", &[4, 1]));
        let found = other["w"].find(old.as_bytes(), 0).unwrap();
        assert_eq!(found.member, MemberId(1));
        let set = other["w"].set(MemberId(1), false, 1, NOW).unwrap();
        assert!(
            set.ends_with("; Path=/a; HttpOnly; SameSite=None; Max-Age=3600; Secure"),
            "{set}"
        );
        assert_eq!(other["w"].set(MemberId(9), true, 1, NOW), None);

        let path = std::env::temp_dir().join(format!("evenkeel-sticky-{}", std::process::id()));
        let groups = config(&format!("sticky = {{ key_file = {path:?} }}"));
        let error = |known| load(&groups, known).unwrap_err()[0].to_string();
        assert!(
            error(&first).contains("t:4:23: rule.w.sticky.key_file: key file"),
            "{}",
            error(&first)
        );
        std::fs::write(&path, "0123456789abcdef0123456789abcde\n").unwrap();
        assert!(error(&first).contains("chmod o="));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(error(&first).contains("has 31 bytes, but a key needs at least 32"));
        std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").unwrap();
        let keyed = load(&groups, &first).unwrap();
        assert!(!Arc::ptr_eq(&first["w"], &keyed["w"]));
        assert!(Arc::ptr_eq(
            &keyed["w"],
            &load(&groups, &keyed).unwrap()["w"]
        ));
        std::fs::write(&path, "0123456789abcdef0123456789abcdeX\n").unwrap();
        assert!(!Arc::ptr_eq(
            &keyed["w"],
            &load(&groups, &keyed).unwrap()["w"]
        ));
        std::fs::remove_file(&path).unwrap();
    }
}
