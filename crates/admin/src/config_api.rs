//! The configuration through the API: read, looked at before it is changed, changed, taken back.

use std::sync::Arc;

use axum::extract::{Path as InPath, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_manager::ChangeError;
use evenkeel_manager::config::edit;
use evenkeel_manager::config::image::{self, Import};
use evenkeel_manager::config::{self, Problem};
use evenkeel_manager::revisions::{Author, Entry, Revision};
use evenkeel_manager::{ManageError, Manager, WantedConfig, writing};
use serde_json::json;

use crate::actor::{Actor, Role};
use crate::answer::Answer;
use crate::audit::AuditDescription;
use crate::body::Body;
use crate::config_errors::{change_error, internal_error};
use crate::error::ApiError;
use crate::operation::{Operation, Operations};
use crate::proposal::{examine_proposed, look_at_import, texts_of};
use crate::sources::Sources;
use crate::wire::{
    Changed, Compared, Configuration, Examined, ImportRule, Included, OnDisk, PatchConfig,
    Proposed, PutConfig, Restore, RevisionText, RuleImage, Told, Undo,
};

/// Adds the operations on the configuration.
pub(crate) fn add_operations(all: Operations) -> Operations {
    add_images(add_revisions(add_texts(all)))
}

/// Adds the operations on the text of the configuration in force.
fn add_texts(all: Operations) -> Operations {
    let administer = Role::Administer;
    all.add_operation(
        Operation::show_json::<Configuration>(
            "/v1/config",
            "The configuration in force: its text, its values and its revision",
        ),
        show_config,
    )
    .add_operation(
        Operation::show_text(
            "/v1/config/file",
            TEXT,
            "The text of the configuration in force, to keep",
        ),
        download,
    )
    .add_operation(
        Operation::post_question::<Proposed, Examined>(
            "/v1/config/validate",
            administer,
            "Checks a configuration, without applying it",
        ),
        validate_config,
    )
    .add_operation(
        Operation::post_question::<Proposed, Compared>(
            "/v1/config/diff",
            administer,
            "Says what a configuration would change, without applying it",
        ),
        diff_config,
    )
    .add_operation(
        Operation::act_on_body::<PutConfig, Changed>(
            Method::PUT,
            "/v1/config",
            administer,
            "Replaces configuration and file, if If-Match is the revision in force",
        ),
        put_config,
    )
    .add_operation(
        Operation::act_on_body::<PatchConfig, Changed>(
            Method::PATCH,
            "/v1/config",
            administer,
            "Edits configuration and file, if If-Match is the revision in force",
        ),
        patch_config,
    )
}

/// Adds the operations on earlier configurations.
fn add_revisions(all: Operations) -> Operations {
    let administer = Role::Administer;
    all.add_operation(
        Operation::show_json::<Vec<Revision>>(
            "/v1/config/history",
            "The configurations that are and were in force, the last one first",
        ),
        show_history,
    )
    .add_operation(
        Operation::show_json::<RevisionText>(
            "/v1/config/history/{revision}",
            "The text of a revision, and what differs from the configuration in force",
        ),
        show_revision,
    )
    .add_operation(
        Operation::act_on_body::<Undo, Changed>(
            Method::POST,
            "/v1/config/undo",
            administer,
            "Takes the last change back, if If-Match is the revision in force",
        ),
        undo_change,
    )
    .add_operation(
        Operation::act_on_body::<Restore, Changed>(
            Method::POST,
            "/v1/config/restore",
            administer,
            "Goes back to an earlier revision, if If-Match is the revision in force",
        ),
        restore_revision,
    )
}

/// Adds the operations on images of rules.
fn add_images(all: Operations) -> Operations {
    all.add_operation(
        Operation::show_json::<RuleImage>(
            "/v1/config/export/{rule}",
            "The image of a rule: the rule with all that it refers to",
        ),
        export,
    )
    .add_operation(
        Operation::show_text(
            "/v1/config/export/{rule}/file",
            TEXT,
            "The text of the image of a rule, to keep",
        ),
        export_file,
    )
    .add_operation(
        Operation::act_on_body::<ImportRule, Changed>(
            Method::POST,
            "/v1/config/import",
            Role::Administer,
            "Takes the image of a rule in, if If-Match is the revision in force",
        ),
        import,
    )
}

const TEXT: &str = "text/plain; charset=utf-8";

/// The longest comment on a change, in bytes.
const MAX_COMMENT: usize = 1000;

fn in_force(manager: &Manager) -> Result<Arc<Entry>, ApiError> {
    manager
        .in_force()
        .ok_or_else(|| change_error(ChangeError::NoFile))
}

/// Returns a text as `actor` may see it.
pub(crate) fn seen_by(actor: &Actor, text: &str) -> String {
    match actor.role {
        Role::Administer => text.to_owned(),
        Role::View | Role::Operate => edit::mask_secrets(text),
    }
}

/// Does something that takes a while where it keeps nobody waiting.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| internal_error(&error.to_string()))
}

async fn show_config(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
) -> Result<Response, ApiError> {
    let entry = in_force(&sources.manager)?;
    let generation = sources.manager.snapshots().borrow().generation;
    let answer = run_blocking(move || {
        let text = seen_by(&actor, &entry.text);
        let revision = &entry.revision.revision;
        let store = sources.manager.store();
        let stored = store.and_then(|store| store.stored());
        let kept = match (store, stored) {
            (None, _) => config::text_of(&sources.config_file),
            (Some(_), Some(text)) => Ok(text.to_string()),
            // Nothing is known that would differ.
            (Some(_), None) => Ok(entry.text.to_string()),
        };
        let unwritable = match store {
            None => writing::obstacle(&sources.config_file),
            Some(_) => None,
        };
        let on_disk = match kept {
            Ok(text) => OnDisk {
                differs: *text != *entry.text,
                revision: Some(edit::text_revision(&text)),
                error: None,
                unwritable,
            },
            Err(errors) => OnDisk {
                differs: true,
                revision: None,
                error: Some(errors.to_string()),
                unwritable,
            },
        };
        let included = match store {
            None => config::list_included(&sources.config_file, &entry.text),
            Some(_) => Vec::new(),
        };
        let included = included.into_iter().map(|(file, text)| Included {
            file: file.display().to_string(),
            text: seen_by(&actor, &text),
        });
        Configuration {
            included: included.collect(),
            file: match store {
                None => sources.config_file.display().to_string(),
                Some(store) => store.name(),
            },
            revision: revision.clone(),
            generation,
            values: edit::values(&text).unwrap_or_default(),
            text,
            on_disk,
        }
    });
    let answer = answer.await?;
    let tag = etag(&answer.revision)?;
    Ok(([(ETAG, tag)], Json(answer)).into_response())
}

fn etag(revision: &str) -> Result<HeaderValue, ApiError> {
    let tag = HeaderValue::try_from(format!("\"{revision}\""));
    tag.map_err(|error| internal_error(&error.to_string()))
}

async fn download(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
) -> Result<Response, ApiError> {
    let entry = in_force(&sources.manager)?;
    let name = sources.config_file.file_name().unwrap_or_default();
    let text = seen_by(&actor, &entry.text);
    Ok(attachment(&name.to_string_lossy(), &entry, text))
}

/// Returns a text of a configuration as a file.
fn attachment(name: &str, entry: &Entry, text: String) -> Response {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "-_.".contains(*c);
    let name: String = name.chars().filter(plain).collect();
    let disposition = format!("attachment; filename=\"{name}\"");
    let fields = [
        (CONTENT_TYPE, TEXT.to_owned()),
        (CONTENT_DISPOSITION, disposition),
        (ETAG, format!("\"{}\"", entry.revision.revision)),
    ];
    (fields, text).into_response()
}

/// Returns the image of a rule, as the actor may see it.
fn image_of(
    sources: &Sources,
    actor: &Actor,
    entry: &Entry,
    rule: String,
) -> Result<RuleImage, ApiError> {
    let file = &sources.config_file;
    let config = sources.manager.parse(file, &entry.text);
    let config = config.map_err(|errors| change_error(ChangeError::Config(errors)))?;
    let texts = texts_of(sources, &entry.text);
    let Some(image) = image::export(file, &texts, &config, &rule) else {
        return Err(sources.explain_refusal(ManageError::NoRule(rule)));
    };
    Ok(RuleImage {
        rule,
        text: seen_by(actor, &image.text),
        tables: image.tables,
        files: image.files,
        variables: image.variables,
        problems: image.problems.into_iter().map(Told::from).collect(),
        revision: entry.revision.revision.clone(),
    })
}

async fn export(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    InPath(rule): InPath<String>,
) -> Answer<RuleImage> {
    let entry = in_force(&sources.manager)?;
    let image = run_blocking(move || image_of(&sources, &actor, &entry, rule)).await?;
    image.map(Json)
}

async fn export_file(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    InPath(rule): InPath<String>,
) -> Result<Response, ApiError> {
    let entry = in_force(&sources.manager)?;
    let file = run_blocking(move || {
        let image = image_of(&sources, &actor, &entry, rule)?;
        Ok(attachment(
            &format!("{}.toml", image.rule),
            &entry,
            image.text,
        ))
    });
    file.await?
}

async fn import(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
    Body(body): Body<ImportRule>,
) -> ChangeResult {
    let revision = base_revision(&sources.manager, &headers)?;
    let entry = in_force(&sources.manager)?;
    if entry.revision.revision != revision {
        let now = Box::new(entry.revision.clone());
        return Err(change_error(ChangeError::ChangedMeanwhile(now)));
    }
    let ImportRule {
        text,
        rename,
        replace,
        comment,
    } = body;
    let import = Import {
        text,
        rename,
        replace,
    };
    let looking = Arc::clone(&sources);
    let looked = run_blocking(move || look_at_import(&looking, &entry.text, &import)).await?;
    if !looked.problems.is_empty() {
        let problems = looked.problems.iter().cloned().map(Problem::from);
        let problems: Vec<String> = problems.map(|problem| problem.to_string()).collect();
        let refused = ApiError::invalid("bad_configuration", problems.join("\n"));
        return Err(
            refused.with_fields(json!({ "problems": looked.problems, "import": looked.import }))
        );
    }
    let wanted = WantedConfig::Text(looked.text);
    let (what, Json(mut changed)) =
        change_config(sources, actor, &headers, wanted, comment).await?;
    changed.notes.extend(looked.notes);
    changed.import = looked.import;
    Ok((what, Json(changed)))
}

async fn validate_config(
    State(sources): State<Arc<Sources>>,
    Body(proposed): Body<Proposed>,
) -> Answer<Examined> {
    let entry = in_force(&sources.manager)?;
    let looked = run_blocking(move || examine_proposed(&sources, &entry.text, proposed)).await??;
    Ok(Json(Examined {
        ok: looked.problems.is_empty(),
        problems: looked.problems,
        warnings: looked.warnings,
        needs_restart: looked.needs_restart,
    }))
}

async fn diff_config(
    State(sources): State<Arc<Sources>>,
    Body(proposed): Body<Proposed>,
) -> Answer<Compared> {
    let entry = in_force(&sources.manager)?;
    let compare = move || {
        let looked = examine_proposed(&sources, &entry.text, proposed)?;
        let before = edit::values(&entry.text).unwrap_or_default();
        // A text that is none has no values, but differs.
        let after = edit::values(&looked.text);
        let changes = after.map(|after| edit::list_changes(&before, &after));
        Ok(Compared {
            ok: looked.problems.is_empty(),
            problems: looked.problems,
            warnings: looked.warnings,
            diff: edit::unified(("in force", &entry.text), ("proposed", &looked.text)),
            changes: changes.unwrap_or_default(),
            needs_restart: looked.needs_restart,
            revision: entry.revision.revision.clone(),
            import: looked.import,
        })
    };
    run_blocking(compare).await?.map(Json)
}

/// Result of a change, with a description for the audit log: texts of configurations hold secrets.
type ChangeResult = Result<(Extension<AuditDescription>, Json<Changed>), ApiError>;

async fn put_config(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
    Body(body): Body<PutConfig>,
) -> ChangeResult {
    let wanted = match body.force {
        true => WantedConfig::AnyText(body.text),
        false => WantedConfig::Text(body.text),
    };
    change_config(sources, actor, &headers, wanted, body.comment).await
}

async fn patch_config(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
    Body(body): Body<PatchConfig>,
) -> ChangeResult {
    let wanted = WantedConfig::Edits(body.edits);
    change_config(sources, actor, &headers, wanted, body.comment).await
}

async fn undo_change(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
    Body(body): Body<Undo>,
) -> ChangeResult {
    change_config(sources, actor, &headers, WantedConfig::Undo, body.comment).await
}

async fn restore_revision(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    headers: HeaderMap,
    Body(body): Body<Restore>,
) -> ChangeResult {
    let wanted = WantedConfig::Restore(body.revision);
    change_config(sources, actor, &headers, wanted, body.comment).await
}

async fn change_config(
    sources: Arc<Sources>,
    actor: Actor,
    headers: &HeaderMap,
    wanted: WantedConfig,
    comment: String,
) -> ChangeResult {
    let base = base_revision(&sources.manager, headers)?;
    let printable = |c: char| !c.is_control() || c == '\n';
    if comment.len() > MAX_COMMENT || !comment.chars().all(printable) {
        let detail =
            format!("the comment must have at most {MAX_COMMENT} bytes, and no control characters");
        return Err(ApiError::invalid("bad_comment", detail));
    }
    let author = Author {
        user_name: actor.user,
        from: actor.from,
        comment: comment.clone(),
    };
    // Whoever asks may go away; what is begun is ended.
    let of = base.clone();
    let task = async move {
        let file = &sources.config_file;
        sources.manager.change_file(file, &of, wanted, author).await
    };
    let done = tokio::spawn(task).await;
    let done = done.map_err(|error| internal_error(&error.to_string()))?;
    let changed = done.map_err(change_error)?;
    let what = AuditDescription(format!("{base} -> {}: {comment}", changed.revision));
    let answer = Changed {
        revision: changed.revision,
        generation: changed.generation,
        notes: changed.notes,
        in_effect: changed.in_effect,
        import: None,
    };
    Ok((Extension(what), Json(answer)))
}

/// Returns the revision that a change is based on.
fn base_revision(manager: &Manager, headers: &HeaderMap) -> Result<String, ApiError> {
    let mut given = headers.get_all(IF_MATCH).iter();
    let tag = given.next().filter(|_| given.next().is_none());
    let tag = tag.and_then(|tag| tag.to_str().ok()).map(str::trim);
    let tag = tag.map(|tag| tag.trim_matches('"'));
    let is_revision =
        |tag: &&str| tag.len() == 16 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(tag) = tag.filter(is_revision) {
        return Ok(tag.to_ascii_lowercase());
    }
    let now = in_force(manager)?;
    let detail = format!(
        "say which configuration the change is based on: send If-Match: \"REVISION\", with the revision of GET /v1/config; {} is in force now",
        now.revision.revision
    );
    let status = StatusCode::PRECONDITION_REQUIRED;
    Err(ApiError::new(status, "no_revision", detail))
}

async fn show_history(State(sources): State<Arc<Sources>>) -> Json<Vec<Revision>> {
    Json(sources.manager.revisions())
}

async fn show_revision(
    State(sources): State<Arc<Sources>>,
    Extension(actor): Extension<Actor>,
    InPath(revision): InPath<String>,
) -> Answer<RevisionText> {
    let now = in_force(&sources.manager)?;
    let found = sources.manager.revision(&revision);
    let entry = found.ok_or_else(|| change_error(ChangeError::NoRevision(revision)))?;
    let answer = run_blocking(move || {
        let text = seen_by(&actor, &entry.text);
        let now = seen_by(&actor, &now.text);
        RevisionText {
            revision: entry.revision.revision.clone(),
            diff: edit::unified((&entry.revision.revision, &text), ("in force", &now)),
            text,
        }
    });
    answer.await.map(Json)
}

/// Returns the longest body that a path takes, in bytes.
pub(crate) fn max_body(path: &str) -> Option<usize> {
    let is_ours = path == "/v1/config" || path.starts_with("/v1/config/");
    // A text in JSON is longer than it is alone.
    let largest = config::MAX_FILE_SIZE + config::MAX_FILE_SIZE / 4;
    is_ours.then(|| usize::try_from(largest).unwrap_or(usize::MAX))
}
