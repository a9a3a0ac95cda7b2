use super::*;
use crate::directory::Reference;
use crate::properties::Scope;
use crate::service::state::{GroupMember, ObjectGroup};
use crate::service::store;
use crate::types::Property;

/// A folder of its own, which is gone in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> (Self, PathBuf) {
        let name = format!("evenkeel-journal-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state.json");
        (Folder(folder), path)
    }

    fn journal(&self) -> PathBuf {
        self.0.join("state.json.journal")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn ior(host: &str) -> Ior {
    Ior::new_iiop("IDL:S:1.0", host, 1, b"k")
}

fn group(creation: u32, members: &[&str]) -> Arc<ObjectGroup> {
    let member = |location: &&str| GroupMember {
        location: (*location).into(),
        reference: Arc::new(Reference::new(ior(location))),
        origin: None,
    };
    Arc::new(ObjectGroup {
        type_id: "IDL:Stock/Factory:1.0".into(),
        creation,
        properties: PropertySet::default(),
        members: members.iter().map(member).collect(),
    })
}

fn properties(share: f32) -> Arc<PropertySet> {
    let property = vec![Property::new("org.evenkeel.MoveShare", &share)];
    Arc::new(PropertySet::read(&property, Scope::Default).unwrap())
}

/// Changes something.
fn step(state: &State, rng: &mut fastrand::Rng) -> Arc<State> {
    const HOSTS: [&str; 4] = ["a", "b", r"c\.d/e.f", "g"];
    let mut next = state.clone();
    let host = HOSTS[rng.usize(..HOSTS.len())];
    let any = state.groups.keys().nth(rng.usize(..=state.groups.len()));
    match rng.u8(..10) {
        0..3 => {
            let id = next.next_group;
            next.next_group += 1;
            next.next_creation += 1;
            next.groups.insert(id, group(state.next_creation, &[host]));
        }
        3..5 => {
            if let Some(id) = any {
                next.groups.insert(*id, group(7, &HOSTS[..rng.usize(..4)]));
            }
        }
        5 => {
            if let Some(id) = any {
                next.groups.remove(id);
            }
        }
        6 => {
            next.monitors.insert(host.into(), Arc::new(ior(host)));
            next.alerts.remove(host);
        }
        7 => {
            next.alerts.insert(host.into(), Arc::new(ior(host)));
            next.monitors.remove(host);
            next.forced.insert(host.into(), rng.bool());
        }
        8 => {
            next.types
                .insert(host.into(), properties(0.3 + rng.f32() / 2.0));
            next.forced.remove(host);
        }
        _ => {
            next.defaults = properties(0.3 + rng.f32() / 2.0);
            next.types.remove(host);
        }
    }
    Arc::new(next)
}

fn first() -> Arc<State> {
    Arc::new(State {
        next_group: 100,
        next_creation: 1,
        ..State::default()
    })
}

#[test]
fn c9_what_was_written_change_by_change_is_read_as_a_whole() {
    let (folder, path) = Folder::new("changes");
    let mut writer = Writer::new(path.clone());
    let mut rng = fastrand::Rng::with_seed(3);
    let mut state = first();
    let (mut files, mut identities) = (0, None);
    for _ in 0..400 {
        state = step(&state, &mut rng);
        writer.write(&state).unwrap();
        assert_eq!(store::load_state(&path).unwrap(), *state);
        let now = identity(&fs::metadata(&path).unwrap());
        files += u32::from(identities.replace(now) != Some(now));
    }
    assert!(
        (2..60).contains(&files),
        "the file was written {files} times"
    );
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);

    // Another process goes on.
    let mut writer = Writer::new(path.clone());
    let next = step(&state, &mut rng);
    writer.write(&next).unwrap();
    assert_eq!(store::load_state(&path).unwrap(), *next);
}

#[test]
fn c9_a_change_takes_as_many_bytes_whatever_else_there_is() {
    let (folder, path) = Folder::new("size");
    let mut appended = Vec::new();
    for many in [10, 2000] {
        let mut state = (*first()).clone();
        for creation in 0..many {
            let id = state.next_group;
            state.next_group += 1;
            state.groups.insert(id, group(creation, &["a", "b"]));
        }
        let mut writer = Writer::new(path.clone());
        writer.write(&Arc::new(state.clone())).unwrap();
        let before = fs::metadata(folder.journal()).unwrap().len();
        state.groups.insert(105, group(5, &["a"]));
        writer.write(&Arc::new(state)).unwrap();
        appended.push(fs::metadata(folder.journal()).unwrap().len() - before);
    }
    assert!(appended[1] <= appended[0] + 8, "{appended:?} bytes");
}

#[test]
fn c9_a_crash_at_any_moment_loses_nothing_that_was_answered() {
    let (folder, path) = Folder::new("crash");
    let mut writer = Writer::new(path.clone());
    let mut rng = fastrand::Rng::with_seed(1);
    let mut states = vec![step(&first(), &mut rng)];
    let mut ends = Vec::new();
    writer.write(&states[0]).unwrap();
    let length = || fs::metadata(folder.journal()).unwrap().len() as usize;
    ends.push(length());
    for _ in 0..3 {
        states.push(step(states.last().unwrap(), &mut rng));
        writer.write(states.last().unwrap()).unwrap();
        ends.push(length());
    }
    let whole = fs::read(folder.journal()).unwrap();
    for cut in ends[0]..=whole.len() {
        fs::write(folder.journal(), &whole[..cut]).unwrap();
        let answered = ends.iter().filter(|&&end| end <= cut).count() - 1;
        assert_eq!(
            store::load_state(&path).unwrap(),
            *states[answered],
            "{cut} bytes"
        );
        // A page of the last line may be missing, too.
        if cut > ends[answered] {
            let mut holed = whole[..cut].to_vec();
            holed[ends[answered]..].fill(0);
            fs::write(folder.journal(), &holed).unwrap();
            assert_eq!(store::load_state(&path).unwrap(), *states[answered]);
        }
    }

    // What is damaged elsewhere is an error, and says where.
    let mut damaged = whole.clone();
    damaged[ends[0] + 30] ^= 1;
    fs::write(folder.journal(), &damaged).unwrap();
    let error = store::load_state(&path).unwrap_err().to_string();
    assert!(
        error.contains("state.json.journal is damaged: line 2"),
        "{error}"
    );

    // The file was written anew, and not yet the journal.
    let next = step(states.last().unwrap(), &mut rng);
    save_state(&path, &next, Some("0123456789abcdef")).unwrap();
    fs::write(folder.journal(), &whole).unwrap();
    assert_eq!(store::load_state(&path).unwrap(), *next);
    fs::remove_file(folder.journal()).unwrap();
    assert_eq!(store::load_state(&path).unwrap(), *next);
}

#[test]
fn c9_a_file_that_was_taken_away_is_written_again() {
    let (folder, path) = Folder::new("away");
    let mut writer = Writer::new(path.clone());
    let mut rng = fastrand::Rng::with_seed(5);
    let mut state = first();
    for away in [path.clone(), folder.journal()] {
        state = step(&state, &mut rng);
        writer.write(&state).unwrap();
        fs::remove_file(&away).unwrap();
        state = step(&state, &mut rng);
        writer.write(&state).unwrap();
        assert_eq!(
            store::load_state(&path).unwrap(),
            *state,
            "{}",
            away.display()
        );
    }
    // A file that is in the way is an error, and then all is written.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(writer.write(&state).is_err());
    fs::remove_dir(&path).unwrap();
    writer.write(&state).unwrap();
    assert_eq!(store::load_state(&path).unwrap(), *state);
}
