//! Changes of the configuration that are written to its file.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::config::edit::{self, Edit};
use crate::{ChangeError, SavedConfig, WantedConfig};

const TEXT: &str = "# ours\n[rule.web]\nlisten = \"127.0.0.1:0\"\nmembers = [\"10.0.0.1:80\"]\n";

struct File {
    folder: PathBuf,
    path: PathBuf,
}

impl File {
    fn new(name: &str) -> Self {
        let name = format!("evenkeel-change-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("evenkeel.toml");
        fs::write(&path, TEXT).unwrap();
        File { folder, path }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap()
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.folder).unwrap().count()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

async fn started(file: &File) -> (Arc<Manager>, Arc<Plane>) {
    let (manager, plane, _) = manager();
    let start = manager.reload(&file.path, How::Start, Author::default());
    start.await.unwrap();
    (manager, plane)
}

fn edits() -> WantedConfig {
    let path = ["rule", "web", "members"].map(Into::into).to_vec();
    let value = ["10.0.0.1:80", "10.0.0.2:80"]
        .map(String::from)
        .to_vec()
        .into();
    WantedConfig::Edits(vec![Edit::Set { path, value }])
}

async fn change(
    manager: &Manager,
    file: &Path,
    wanted: WantedConfig,
) -> Result<SavedConfig, ChangeError> {
    let base = edit::text_revision(TEXT);
    let author = Author::default();
    manager.change_file(file, &base, wanted, author).await
}

#[tokio::test]
async fn what_is_in_force_and_in_the_file_is_the_same() {
    let file = File::new("same");
    let (manager, plane) = started(&file).await;
    let mut revisions = manager.in_force_changes();
    let changed = change(&manager, &file.path, edits()).await.unwrap();
    assert_eq!(changed.generation, 2);
    assert_eq!(
        revisions.borrow_and_update().as_ref().unwrap().text,
        file.text().into()
    );
    assert_eq!(changed.revision, edit::text_revision(&file.text()));
    assert!(file.text().starts_with("# ours\n"));
    assert_eq!(app(&manager).members.len(), 2);
    assert_eq!(file.names(), 1);
    // The watcher sees what was written: it is in force already.
    let prepared = plane.prepared.load(Ordering::Relaxed);
    assert!(manager.reload_changed(&file.path).await.is_none());
    assert_eq!(plane.prepared.load(Ordering::Relaxed), prepared);
    // Another text is not.
    fs::write(&file.path, TEXT).unwrap();
    let reloaded = manager.reload_changed(&file.path).await;
    assert_eq!(reloaded.unwrap().unwrap().generation, 3);
    // One that was refused, and is put back to what is in force, ends the complaint.
    fs::write(&file.path, "bogus = 1").unwrap();
    assert!(manager.reload_changed(&file.path).await.unwrap().is_err());
    fs::write(&file.path, TEXT).unwrap();
    assert!(manager.reload_changed(&file.path).await.unwrap().is_ok());
    assert_eq!(manager.status().last_reload.unwrap().error, None);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_found_before_anything_changes() {
    let file = File::new("unwritable");
    let (manager, plane) = started(&file).await;
    // In the way of the new file.
    let new = format!(".evenkeel.toml.{}.new", std::process::id());
    fs::create_dir(file.folder.join(new)).unwrap();
    let prepared = plane.prepared.load(Ordering::Relaxed);
    let refused = change(&manager, &file.path, edits()).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Write { .. }), "{refused}");
    let said = refused.to_string();
    assert!(
        said.contains("stays as it was. The process must be able to make a file in /"),
        "{said}"
    );
    assert_eq!(plane.prepared.load(Ordering::Relaxed), prepared);
    assert_eq!(file.text(), TEXT);
    assert_eq!(manager.revisions().len(), 1);
}

#[tokio::test]
async fn a_file_that_changes_at_the_last_moment_is_not_overwritten() {
    let file = File::new("late");
    let (manager, plane) = started(&file).await;
    manager.set_weight("web", "10.0.0.1:80", 7.0).unwrap();
    let path = file.path.clone();
    let theirs = format!("{TEXT}# theirs\n");
    let text = theirs.clone();
    let meanwhile = move || fs::write(path, text).unwrap();
    *plane.meanwhile.lock().unwrap() = Some(Box::new(meanwhile));
    let refused = change(&manager, &file.path, edits()).await.unwrap_err();
    let ChangeError::FileChanged { diff, .. } = refused else {
        panic!("{refused}");
    };
    assert!(diff.contains("+# theirs"), "{diff}");
    assert_eq!(file.text(), theirs);
    assert_eq!(file.names(), 1);
    // All is what it was, live changes included.
    assert_eq!(app(&manager).members.len(), 1);
    assert_eq!(member(&manager, "10.0.0.1:80").weight, 7.0);
    assert_eq!(manager.revisions().len(), 1);
    assert_eq!(&*manager.in_force().unwrap().text, TEXT);
}

#[tokio::test]
async fn a_configuration_that_cannot_be_done_leaves_nothing_behind() {
    let file = File::new("refused");
    let (manager, _) = started(&file).await;
    let path = ["rule", "web"].map(Into::into).to_vec();
    let to = "refused".into();
    let wanted = WantedConfig::Edits(vec![Edit::Rename { path, to }]);
    let refused = change(&manager, &file.path, wanted).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Apply(_)), "{refused}");
    assert_eq!((file.text().as_str(), file.names()), (TEXT, 1));
    assert_eq!(manager.status().generation, 1);
    assert_eq!(manager.revisions().len(), 1);
}

#[tokio::test]
async fn what_came_from_no_file_cannot_be_changed() {
    let file = File::new("none");
    let (manager, _, _) = manager();
    manager
        .apply_config(config(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let refused = change(&manager, &file.path, edits()).await.unwrap_err();
    assert!(matches!(refused, ChangeError::NoFile), "{refused}");
}
