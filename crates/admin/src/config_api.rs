//! The configuration through the API: read, looked at before it is changed, changed, taken back.

use std::sync::Arc;

use axum::extract::{Path as InPath, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use evenkeel_manager::ChangeError;
use evenkeel_manager::config::edit;
use evenkeel_manager::config::image::{self, Import, ImportOutcome, Plan};
use evenkeel_manager::config::{self, Config, Errors, Problem, kept};
use evenkeel_manager::revisions::{Author, Entry, Revision};
use evenkeel_manager::store::StoreError;
use evenkeel_manager::subsystem::PrepareError;
use evenkeel_manager::{ManageError, Manager, WantedConfig, writing};
use serde_json::json;

use crate::Sources;
use crate::actor::{Actor, Role};
use crate::api::{Answer, Body};
use crate::audit::AuditDescription;
use crate::error::ApiError;
use crate::operation::{Operation, Operations};
use crate::wire::{
    Changed, Compared, Configuration, Examined, ImportRule, Included, OnDisk, PatchConfig,
    Proposed, PutConfig, Restore, RevisionText, RuleImage, Told, Undo,
};

/// Adds the operations on the configuration.
pub(crate) fn add_operations(all: Operations) -> Operations {
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
    .add_operation(
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
    .add_operation(
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
            administer,
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

fn internal_error(why: &str) -> ApiError {
    let detail = format!("this is a bug, please report it: {why}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
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

/// Returns the texts that the configuration with the text `in_force` is made of. The text `in_force` is the
/// first.
fn texts_of(sources: &Sources, in_force: &str) -> Vec<(String, String)> {
    let file = &sources.config_file;
    let own = file.display().to_string();
    let (mut texts, of) = match sources.manager.store() {
        None => (vec![(own, in_force.to_owned())], in_force.to_owned()),
        Some(store) => {
            let text = config::text_of(file).unwrap_or_default();
            let texts = vec![(store.name(), in_force.to_owned()), (own, text.clone())];
            (texts, text)
        }
    };
    let included = config::list_included(file, &of).into_iter();
    texts.extend(included.map(|(file, text)| (file.display().to_string(), text)));
    texts
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

/// Looks at an import of an image into the configuration with the text `old`.
fn look_at_import(sources: &Sources, old: &str, import: &Import) -> ProposalFindings {
    let plan = Plan::new(&texts_of(sources, old), import);
    let told = |problems: Vec<Problem>| problems.into_iter().map(Told::from);
    let mut looked = ProposalFindings {
        problems: told(plan.problems.clone()).collect(),
        warnings: told(plan.warnings.clone()).collect(),
        notes: plan.warnings.iter().map(Problem::to_string).collect(),
        ..ProposalFindings::of_text(&plan.text)
    };
    if plan.has_text() {
        let mut whole = ProposalFindings::of_text(&plan.text);
        find_problems(sources, &mut whole);
        let placed = |all: Vec<Told>| {
            let problems = all.into_iter().map(Problem::from).collect();
            told(plan.place(problems))
        };
        looked.problems.extend(placed(whole.problems));
        looked.warnings.extend(placed(whole.warnings));
        looked.needs_restart = whole.needs_restart;
    }
    let place = |told: &Told| (told.file.clone(), told.line, told.column);
    looked.problems.sort_by_key(place);
    looked.import = Some(plan.outcome);
    looked
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

/// Findings about a configuration that was proposed.
struct ProposalFindings {
    text: String,
    problems: Vec<Told>,
    warnings: Vec<Told>,
    needs_restart: Vec<String>,
    import: Option<ImportOutcome>,
    /// Warnings about the import itself, which the new text does not give.
    notes: Vec<String>,
}

impl ProposalFindings {
    /// Returns the findings about a text of which nothing is known yet.
    fn of_text(text: &str) -> Self {
        ProposalFindings {
            text: text.to_owned(),
            problems: Vec::new(),
            warnings: Vec::new(),
            needs_restart: Vec::new(),
            import: None,
            notes: Vec::new(),
        }
    }
}

/// Looks at a configuration as `evenkeel check` does.
fn examine_proposed(
    sources: &Sources,
    old: &str,
    proposed: Proposed,
) -> Result<ProposalFindings, ApiError> {
    let mut looked = ProposalFindings::of_text(old);
    match (proposed.text, proposed.edits, proposed.import) {
        (Some(text), None, None) => looked.text = text,
        (None, None, Some(import)) => return Ok(look_at_import(sources, old, &import)),
        (None, Some(edits), None) => match apply_edits(sources, old, &edits) {
            Ok(text) => looked.text = text,
            Err(error) => {
                looked.problems = problems_of(&ChangeError::Edit(error));
                return Ok(looked);
            }
        },
        _ => {
            let detail = "the body must have either a text, or edits, or an import";
            return Err(ApiError::invalid("bad_body", detail));
        }
    }
    if edit::has_masked_secret(&looked.text) {
        looked.problems = problems_of(&ChangeError::Masked);
        return Ok(looked);
    }
    find_problems(sources, &mut looked);
    Ok(looked)
}

/// Finds what is wrong with a text.
fn find_problems(sources: &Sources, looked: &mut ProposalFindings) {
    let name = sources.config_file.display().to_string();
    match sources.manager.parse(&sources.config_file, &looked.text) {
        Ok(config) => {
            looked.problems = in_files(sources, &name, &config);
            looked.needs_restart = sources.manager.would_need_restart(&config);
            let of_files = kept::complaints(config.files()).into_iter();
            let of_files: Vec<_> = of_files
                .map(|complaint| Told::of_file(&name, complaint))
                .collect();
            let warnings = config.warnings.into_iter().map(Told::from);
            looked.warnings = warnings.chain(of_files).collect();
        }
        Err(errors) => looked.problems = problems_of(&ChangeError::Config(errors)),
    }
}

/// Applies the edits to a text; a text that is shared includes nothing.
fn apply_edits(
    sources: &Sources,
    old: &str,
    edits: &[edit::Edit],
) -> Result<String, edit::EditError> {
    match sources.manager.store() {
        None => edit::apply_in(&sources.config_file, old, edits),
        Some(_) => edit::apply_edits(old, edits),
    }
}

/// Returns the problems of files that a configuration names.
fn in_files(sources: &Sources, name: &str, config: &Config) -> Vec<Told> {
    let lists = evenkeel_manager::lists::check_files(config);
    let of_lists = lists
        .into_iter()
        .map(|problem| Told::of_file(name, problem));
    let proxy = evenkeel_proxy::check_files(config);
    let others = sources.manager.subsystems().check(config);
    let all = proxy.into_iter().chain(others).map(|error| match error {
        PrepareError::File(problem) => Told::from(*problem),
        error => Told::of_file(name, error.to_string()),
    });
    of_lists.chain(all).collect()
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

/// Returns all problems, each with its place.
pub(crate) fn problems_of(error: &ChangeError) -> Vec<Told> {
    match error {
        ChangeError::Config(errors) => list_problems(errors),
        ChangeError::Edit(error) => vec![Told {
            key: error.path.clone(),
            message: match error.edit {
                Some(index) => format!("edit {index}: {}", error.why),
                None => error.why.clone(),
            },
            ..Told::default()
        }],
        other => vec![Told {
            message: other.to_string(),
            ..Told::default()
        }],
    }
}

/// Returns the problems of a file.
pub(crate) fn list_problems(errors: &Errors) -> Vec<Told> {
    let mut all: Vec<Told> = errors.problems.iter().cloned().map(Told::from).collect();
    if errors.omitted > 0 {
        all.push(Told {
            message: format!("and {} more problems", errors.omitted),
            ..Told::default()
        });
    }
    all
}

impl Told {
    fn of_file(file: &str, message: impl ToString) -> Self {
        Told {
            file: file.into(),
            message: message.to_string(),
            ..Told::default()
        }
    }
}

fn change_error(error: ChangeError) -> ApiError {
    let detail = error.to_string();
    let new = |status, word| ApiError::new(status, word, detail.clone());
    match &error {
        ChangeError::NoFile => new(StatusCode::CONFLICT, "no_file"),
        ChangeError::ChangedMeanwhile(now) => {
            let refused = new(StatusCode::PRECONDITION_FAILED, "changed_meanwhile");
            let now = serde_json::to_value(now).unwrap_or_default();
            refused.with_fields(now)
        }
        ChangeError::FileChanged { diff, .. } => {
            new(StatusCode::CONFLICT, "file_changed").with_fields(json!({ "diff": diff }))
        }
        ChangeError::Edit(_) | ChangeError::Masked | ChangeError::Config(_) => {
            let refused = ApiError::invalid("bad_configuration", detail);
            refused.with_fields(json!({ "problems": problems_of(&error) }))
        }
        ChangeError::Apply(_) => new(StatusCode::CONFLICT, "not_applied"),
        ChangeError::Write { .. } | ChangeError::Stuck { .. } => {
            new(StatusCode::INTERNAL_SERVER_ERROR, "not_written")
        }
        ChangeError::Store(StoreError::ChangedMeanwhile(_)) => {
            new(StatusCode::PRECONDITION_FAILED, "changed_meanwhile")
        }
        ChangeError::Store(StoreError::Refused(_)) => new(StatusCode::CONFLICT, "store_refuses"),
        ChangeError::Store(StoreError::Unreachable(_)) => {
            new(StatusCode::SERVICE_UNAVAILABLE, "store_unreachable")
        }
        ChangeError::NoRevision(_) => ApiError::not_found("unknown_revision", detail),
        ChangeError::Process => new(StatusCode::FORBIDDEN, "own_file_only"),
        ChangeError::NoRules => new(StatusCode::CONFLICT, "no_rules"),
        ChangeError::NothingToUndo => new(StatusCode::CONFLICT, "nothing_to_undo"),
    }
}

/// Returns the longest body that a path takes, in bytes.
pub(crate) fn max_body(path: &str) -> Option<usize> {
    let is_ours = path == "/v1/config" || path.starts_with("/v1/config/");
    // A text in JSON is longer than it is alone.
    let largest = config::MAX_FILE_SIZE + config::MAX_FILE_SIZE / 4;
    is_ours.then(|| usize::try_from(largest).unwrap_or(usize::MAX))
}
