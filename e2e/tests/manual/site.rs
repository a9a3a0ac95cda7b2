//! Links of all pages lead somewhere, and the manual is a whole site.

#![allow(clippy::unwrap_used)] // Helpers of tests fail by panicking.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use evenkeel_e2e::folder::Folder;
use evenkeel_e2e::manual::pages;
use evenkeel_e2e::process::find;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Contents of a page.
#[derive(Default)]
struct Page {
    /// Links and pictures, with the line of each.
    links: Vec<(usize, String)>,
    /// Anchors that a link to a heading may name.
    anchors: BTreeSet<String>,
}

/// The name of a heading in links, as forges and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

fn parse(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    let mut times: HashMap<String, usize> = HashMap::new();
    let line = |at: usize| text[..at].lines().count().max(1);
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let name = anchor(heading.take().unwrap_or_default().trim());
                let before = times.entry(name.clone()).or_default();
                page.anchors.insert(match *before {
                    0 => name,
                    count => format!("{name}-{count}"),
                });
                *before += 1;
            }
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push((line(range.start), dest_url.to_string()));
            }
            _ => {}
        }
    }
    page
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

fn is_elsewhere(link: &str) -> bool {
    ["https://", "http://", "mailto:"]
        .iter()
        .any(|scheme| link.starts_with(scheme))
}

#[test]
fn u10_links_lead_to_files_and_headings_that_there_are() {
    let all: BTreeMap<PathBuf, Page> = pages()
        .into_iter()
        .map(|name| {
            let page = parse(&fs::read_to_string(root().join(&name)).unwrap());
            (PathBuf::from(name), page)
        })
        .collect();
    let mut wrong = String::new();
    let mut count = 0;
    for (name, page) in &all {
        for (line, link) in &page.links {
            if is_elsewhere(link) {
                continue;
            }
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = match path {
                "" => name.clone(),
                path => plain(&name.parent().unwrap().join(path)),
            };
            let found = all.get(&to);
            let why = if !root().join(&to).is_file() {
                "there is no such file (a folder's page is its README.md)"
            } else if anchor.is_empty() || found.is_some_and(|page| page.anchors.contains(anchor)) {
                continue;
            } else {
                "there is no such heading"
            };
            wrong += &format!("{}:{line}: {link}: {why}\n", name.display());
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(count > 500, "only {count} links are known");
}

/// The pages of the summary, in its order.
fn chapters() -> Vec<PathBuf> {
    let summary = parse(&fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap());
    let links = summary.links.iter();
    links
        .map(|(_, link)| plain(&Path::new("docs").join(link)))
        .collect()
}

#[test]
fn u10_each_chapter_is_in_the_summary_once() {
    let chapters = chapters();
    let set: BTreeSet<_> = chapters.iter().collect();
    assert_eq!(set.len(), chapters.len(), "a page is there twice");
    for name in pages() {
        let is_chapter = name.starts_with("docs/") && name != "docs/SUMMARY.md";
        let is_in = set.contains(&PathBuf::from(&name));
        assert!(is_in || !is_chapter, "docs/SUMMARY.md: {name} is missing");
    }
    // What a chapter links to is a chapter, too, so that nobody is led out of the manual.
    for chapter in &chapters {
        let page = parse(&fs::read_to_string(root().join(chapter)).unwrap());
        for (line, link) in &page.links {
            let path = link.split('#').next().unwrap_or_default();
            let to = plain(&chapter.parent().unwrap().join(path));
            let is_page = !is_elsewhere(link) && path.ends_with(".md");
            assert!(
                !is_page || set.contains(&to),
                "{}:{line}: {link}: docs/SUMMARY.md does not have it",
                chapter.display()
            );
        }
    }
}

#[test]
fn u10_each_example_is_described() {
    let text = fs::read_to_string(root().join("examples/README.md")).unwrap();
    let linked: BTreeSet<String> = parse(&text).links.into_iter().map(|(_, to)| to).collect();
    for entry in fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_known = linked.contains(name) || path.is_dir() || name == "README.md";
        assert!(is_known, "examples/README.md does not describe {name}");
    }
}

/// Values of attributes of a page of HTML. mdBook writes them in double quotes.
fn attributes<'t>(html: &'t str, name: &str) -> Vec<&'t str> {
    let start = format!(" {name}=\"");
    let parts = html.split(&start).skip(1);
    parts.filter_map(|part| part.split('"').next()).collect()
}

fn html_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            html_files(&path, found);
        } else if path.extension().is_some_and(|end| end == "html") {
            found.push(path);
        }
    }
}

/// `make docs`, where there is mdBook; nobody needs it to test.
#[test]
fn u10_the_site_is_whole() {
    if find("mdbook").is_none() && !root().join("e2e/.cache/mdbook/bin/mdbook").exists() {
        let line =
            "SKIPPED: u10_the_site_is_whole: mdbook is not installed; scripts/setup docs does that";
        let _ = writeln!(std::io::stderr(), "{line}");
        return;
    }
    let folder = Folder::new();
    let site = folder.join("site");
    let output = Command::new(root().join("scripts/docs"))
        .arg(&site)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut files = Vec::new();
    html_files(&site, &mut files);
    let all: BTreeMap<&PathBuf, String> = files
        .iter()
        .map(|path| (path, fs::read_to_string(path).unwrap()))
        .collect();
    let chapters = chapters().len();
    assert!(all.len() >= chapters, "{} of {chapters} pages", all.len());
    let mut wrong = String::new();
    for (path, html) in &all {
        // Made for a server's root, and what is in a frame, whose links are those of pages.
        if path.ends_with("404.html") || path.ends_with("toc.html") {
            continue;
        }
        for link in [attributes(html, "href"), attributes(html, "src")].concat() {
            if is_elsewhere(link) || link.starts_with("data:") {
                continue;
            }
            let (to, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = match to {
                "" => (*path).clone(),
                to => plain(&path.parent().unwrap().join(to)),
            };
            let page = all.get(&to);
            let has = |html: &String| attributes(html, "id").contains(&anchor);
            let is_there = to.is_file() && (anchor.is_empty() || page.is_none_or(has));
            if !is_there {
                wrong += &format!("{}: {link}\n", path.strip_prefix(&site).unwrap().display());
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    let has = |start: &str| {
        let mut files = fs::read_dir(&site).unwrap().flatten();
        files.any(|file| file.file_name().to_string_lossy().starts_with(start))
    };
    assert!(has("searchindex"), "no search");
    assert!(
        site.join("console/screenshots/overview-light.png")
            .is_file()
    );
}

#[test]
fn u10_headings_are_named_as_forges_name_them() {
    let page = parse(
        "# A `b.c` [d](x.md#y)\n\n## `[group.NAME.sticky]`\n\ntext\n\n## A b\n## A b\n\n![p](q.png)\n",
    );
    let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
    assert_eq!(anchors, ["a-b", "a-b-1", "a-bc-d", "groupnamesticky"]);
    assert_eq!(
        page.links,
        [(1, "x.md#y".to_owned()), (9, "q.png".to_owned())]
    );
    assert_eq!(plain(Path::new("docs/../a/./b")), Path::new("a/b"));
}
