//! Files that the configuration names, each of which is taken or kept by itself.
//!
//! A followed file may be broken for a while: a renewal that got stuck, a wrong line, a full disk. What it
//! said when it was last good stays in use then, and everything else goes on: other files, changes of the
//! configuration, an upgrade. Each reader of such a file reads it through [`load_or_keep`]. Where nothing good is known,
//! as at a start or for a file that was not named before, a file that cannot be used is an error.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Files that were good, and complaints about those that are not.
#[derive(Default)]
struct Store {
    /// Content of files when they were last good.
    good: HashMap<PathBuf, Arc<[u8]>>,
    /// Complaints about files that are in use all the same, by the first file of what was read.
    complaints: BTreeMap<PathBuf, Vec<String>>,
    /// Files that could not be read at the last try: they are gone, or their rights are wrong.
    refused: HashSet<PathBuf>,
    /// Contents that take the place of files which are on no disk.
    in_memory: Arc<MemoryFiles>,
}

/// Folder in the names of files that are on no disk. There is no such folder.
pub const MEMORY_FOLDER: &str = "/proc/evenkeel";

/// Contents of files that are on no disk, such as certificates of a cluster.
pub type MemoryFiles = BTreeMap<PathBuf, Arc<[u8]>>;

/// The files of this process.
static STORE: LazyLock<Mutex<Store>> = LazyLock::new(Mutex::default);

fn store() -> MutexGuard<'static, Store> {
    STORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that was asked for, with what was read.
type Asked = (PathBuf, Option<Arc<[u8]>>);

/// Sets the contents of files that are on no disk, in place of all that were set before.
pub fn set_memory_files(files: Arc<MemoryFiles>) {
    store().in_memory = files;
}

/// Returns the contents of files that are on no disk.
pub fn memory_files() -> Arc<MemoryFiles> {
    Arc::clone(&store().in_memory)
}

/// Source of the contents of files: the disk, or what was last good.
pub struct Source {
    /// Contents of files that are on no disk.
    in_memory: Arc<MemoryFiles>,
    /// Contents that take the place of those on disk.
    good: HashMap<PathBuf, Arc<[u8]>>,
    /// Files that were asked for.
    asked: RefCell<Vec<Asked>>,
    used_good: Cell<bool>,
}

impl Source {
    fn new(good: HashMap<PathBuf, Arc<[u8]>>) -> Self {
        Source {
            in_memory: memory_files(),
            good,
            asked: RefCell::default(),
            used_good: Cell::new(false),
        }
    }

    /// Returns the content of the file at `path`, which `read` reads from disk.
    ///
    /// # Errors
    ///
    /// The error of `read`.
    pub fn read<E>(
        &self,
        path: &Path,
        read: impl FnOnce(&Path) -> Result<Vec<u8>, E>,
    ) -> Result<Arc<[u8]>, E> {
        if let Some(content) = self.in_memory.get(path) {
            return Ok(Arc::clone(content));
        }
        if let Some(good) = self.good.get(path) {
            self.used_good.set(true);
            return Ok(Arc::clone(good));
        }
        let content: Result<Arc<[u8]>, E> = read(path).map(Into::into);
        let kept = content.as_ref().ok().cloned();
        self.asked.borrow_mut().push((path.to_owned(), kept));
        content
    }
}

/// Makes something of one or more files. If that fails with what is on disk, and the files were good before, the
/// contents from then are used, and there is a complaint with the text of `why`. `make` may be called twice.
///
/// # Errors
///
/// The error of the files on disk, if nothing good is known of them.
pub fn load_or_keep<T, E>(
    make: impl Fn(&Source) -> Result<T, E>,
    why: impl FnOnce(&E) -> String,
) -> Result<T, E> {
    let disk = Source::new(HashMap::new());
    let made = make(&disk);
    let asked = disk.asked.into_inner();
    {
        let refused = &mut store().refused;
        for (path, content) in &asked {
            match content {
                Some(_) => drop(refused.remove(path)),
                None => drop(refused.insert(path.clone())),
            }
        }
    }
    let error = match made {
        Ok(made) => {
            let mut store = store();
            for (path, content) in asked {
                store.complaints.remove(&path);
                if let Some(content) = content {
                    store.good.insert(path, content);
                }
            }
            return Ok(made);
        }
        Err(error) => error,
    };
    let Some((first, _)) = asked.first() else {
        return Err(error);
    };
    let good = {
        let store = store();
        let known = asked.iter().filter_map(|(path, _)| {
            let content = store.good.get(path)?;
            Some((path.clone(), Arc::clone(content)))
        });
        known.collect()
    };
    let before = Source::new(good);
    let Ok(made) = make(&before) else {
        return Err(error);
    };
    if !before.used_good.get() {
        return Err(error);
    }
    let complaint = format!(
        "{}; the last good content of the file stays in use until the file is right",
        why(&error)
    );
    store().complaints.insert(first.clone(), vec![complaint]);
    Ok(made)
}

/// Adds a complaint about a file that is used all the same.
pub fn complain(path: &Path, what: String) {
    let mut store = store();
    let complaints = store.complaints.entry(path.to_owned()).or_default();
    if !complaints.contains(&what) {
        complaints.push(what);
    }
}

/// Returns the complaints about these files.
pub fn complaints<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<String> {
    let files: HashSet<&Path> = files.into_iter().collect();
    let store = store();
    let all = store.complaints.iter();
    all.filter(|(path, _)| files.contains(path.as_path()))
        .flat_map(|(_, complaints)| complaints.iter().cloned())
        .collect()
}

/// Forgets those of the files `before` that are not among `now`.
pub fn forget<'a>(
    before: impl IntoIterator<Item = &'a Path>,
    now: impl IntoIterator<Item = &'a Path>,
) {
    let now: HashSet<&Path> = now.into_iter().collect();
    let mut store = store();
    for path in before.into_iter().filter(|path| !now.contains(path)) {
        store.good.remove(path);
        store.complaints.remove(path);
        store.refused.remove(path);
    }
}

/// Returns the good contents of those of `files` that say something else now, or are refused for their rights, for a
/// process that takes the place of this one.
pub fn list_differing<'a>(files: impl IntoIterator<Item = &'a Path>) -> Vec<(PathBuf, Arc<[u8]>)> {
    let store = store();
    let files: HashSet<&Path> = files.into_iter().collect();
    let known = files.into_iter().filter_map(|path| {
        let good = store.good.get(path)?;
        Some((path.to_owned(), Arc::clone(good)))
    });
    let known: Vec<_> = known.collect();
    let refused = store.refused.clone();
    drop(store);
    let is_same = |(path, good): &(PathBuf, Arc<[u8]>)| {
        let now = crate::schema::bounded::read_bytes(path, good.len() as u64);
        now.is_ok_and(|now| *now == **good)
    };
    let differs = |one: &(PathBuf, Arc<[u8]>)| !is_same(one) || refused.contains(&one.0);
    known.into_iter().filter(differs).collect()
}

/// Takes over what was good in the process before.
pub fn take_over(files: impl IntoIterator<Item = (PathBuf, Vec<u8>)>) {
    let mut store = store();
    for (path, content) in files {
        store.good.insert(path, content.into());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tests::scratch_folder;

    /// Two numbers, in a file each, the second of which is twice the first.
    fn pair(one: &Path, two: &Path) -> Result<(u32, u32), String> {
        let number = |source: &Source, path: &Path| {
            let text = source.read(path, |path| {
                fs::read(path).map_err(|error| error.to_string())
            })?;
            let text = String::from_utf8_lossy(&text).into_owned();
            text.parse::<u32>().map_err(|error| error.to_string())
        };
        let make = |source: &Source| {
            let (one, two) = (number(source, one), number(source, two));
            match (one?, two?) {
                (one, two) if two == 2 * one => Ok((one, two)),
                _ => Err("do not fit".to_owned()),
            }
        };
        load_or_keep(make, |error| format!("numbers: {error}"))
    }

    #[test]
    fn a_secret_that_everybody_may_read_is_handed_over() {
        let folder = scratch_folder("kept-rights");
        let path = folder.join("token");
        fs::write(&path, "secret").unwrap();
        let load = |mode: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let parse = |text: &str| Ok(text.to_owned());
            let loaded = crate::schema::source::load_secret(&path, 100, parse);
            assert_eq!(loaded.as_deref(), Ok("secret"));
            list_differing([path.as_path()])
        };
        assert!(load(0o600).is_empty());
        assert_eq!(load(0o644), [(path.clone(), Arc::from(*b"secret"))]);
        assert!(load(0o600).is_empty());
        forget([path.as_path()], []);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_in_memory_needs_no_disk() {
        let (one, two) = (Path::new("/nowhere/one"), Path::new("/nowhere/two"));
        assert!(pair(one, two).is_err());
        let contents = [(one, "4"), (two, "8")];
        let files = contents.map(|(path, text)| (path.to_owned(), Arc::from(text.as_bytes())));
        set_memory_files(Arc::new(files.into()));
        assert_eq!(pair(one, two), Ok((4, 8)));
        assert!(complaints([one, two]).is_empty());
        assert!(list_differing([one, two]).is_empty());
        set_memory_files(Arc::default());
        assert!(pair(one, two).is_err());
    }

    #[test]
    fn f1_files_are_kept_until_all_of_them_fit_again() {
        let folder = scratch_folder("kept-pair");
        let (one, two) = (folder.join("one"), folder.join("two"));
        let files = [one.as_path(), two.as_path()];
        assert!(pair(&one, &two).is_err(), "nothing good is known");
        fs::write(&one, "1").unwrap();
        fs::write(&two, "2").unwrap();
        assert_eq!(pair(&one, &two), Ok((1, 2)));
        assert!(complaints(files).is_empty());
        assert!(list_differing(files).is_empty());
        for broken in ["3", "x"] {
            fs::write(&one, broken).unwrap();
            assert_eq!(pair(&one, &two), Ok((1, 2)), "{broken}");
            assert_eq!(complaints(files).len(), 1, "{broken}");
        }
        let handed = list_differing(files);
        assert_eq!(handed, [(one.clone(), Arc::from(*b"1"))]);
        fs::write(&two, "6").unwrap();
        fs::write(&one, "3").unwrap();
        assert_eq!(pair(&one, &two), Ok((3, 6)));
        assert!(complaints(files).is_empty());
        fs::remove_file(&one).unwrap();
        assert_eq!(pair(&one, &two), Ok((3, 6)));
        let [complaint] = &complaints(files)[..] else {
            panic!("{:?}", complaints(files));
        };
        assert!(complaint.starts_with("numbers: "), "{complaint}");
        assert!(complaint.contains("stays in use"), "{complaint}");
        // The process that follows knows only what was handed over.
        forget(files, []);
        assert!(pair(&one, &two).is_err());
        take_over([(one.clone(), b"3".to_vec())]);
        assert_eq!(pair(&one, &two), Ok((3, 6)));
        fs::remove_dir_all(folder).unwrap();
    }
}
