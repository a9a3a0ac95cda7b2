//! Routes of one host, by the segments of their paths.

use std::collections::HashMap;

use super::path::{MAX_SEGMENT, normalize_segment};

/// The routes of one host, by their numbers, each list in the order of the file.
#[derive(Debug)]
pub(super) struct Tree {
    /// Routes for all paths.
    pub(super) all: Vec<u32>,
    /// Segments of paths. The first node is that of the path without segments.
    nodes: Vec<Node>,
}

/// A path: what is known of the routes that begin with it.
#[derive(Debug, Default)]
struct Node {
    children: HashMap<Box<[u8]>, usize>,
    /// Routes for this very path.
    exact: Vec<u32>,
    /// Routes for this path and all below it.
    below: Vec<u32>,
}

/// A path of a route: its segments, and whether it is for all below it, too.
pub(super) fn segments(path: &str) -> (impl Iterator<Item = &str>, bool) {
    let (path, is_prefix) = match path.strip_suffix("/*") {
        Some(path) => (path, true),
        None => (path, false),
    };
    (path.split('/').skip(1), is_prefix)
}

impl Tree {
    pub(super) fn new() -> Self {
        Tree {
            all: Vec::new(),
            nodes: vec![Node::default()],
        }
    }

    /// Adds a route with these paths, which comes after all others of the tree in the order of the file.
    pub(super) fn add(&mut self, route: u32, paths: &[String]) {
        if paths.is_empty() {
            put(&mut self.all, route);
        }
        let nodes = &mut self.nodes;
        for path in paths {
            let (segments, is_prefix) = segments(path);
            let mut at = 0;
            for segment in segments {
                let mut space = [0; MAX_SEGMENT];
                let Some(name) = normalize_segment(segment, &mut space) else {
                    return;
                };
                let next = nodes.len();
                let Some(node) = nodes.get_mut(at) else {
                    return;
                };
                at = *node.children.entry(name.into()).or_insert(next);
                if at == next {
                    nodes.push(Node::default());
                }
            }
            if let Some(node) = nodes.get_mut(at) {
                let routes = match is_prefix {
                    true => &mut node.below,
                    false => &mut node.exact,
                };
                put(routes, route);
            }
        }
    }

    /// Returns the numbers of all routes, some of them perhaps several times.
    pub(super) fn list_routes(&self) -> impl Iterator<Item = u32> {
        let nodes = self.nodes.iter();
        let by_path = nodes.flat_map(|node| node.exact.iter().chain(&node.below));
        self.all.iter().chain(by_path).copied()
    }

    /// Shows `look` the routes for `path`, beside those for all paths.
    pub(super) fn walk(&self, path: &str, look: &mut impl FnMut(&[u32])) {
        let Some(rest) = path.strip_prefix('/') else {
            return;
        };
        let Some(mut node) = self.nodes.first() else {
            return;
        };
        look(&node.below);
        for segment in rest.split('/') {
            if node.children.is_empty() {
                return;
            }
            let mut space = [0; MAX_SEGMENT];
            let child =
                normalize_segment(segment, &mut space).and_then(|name| node.children.get(name));
            match child.and_then(|&child| self.nodes.get(child)) {
                Some(child) => node = child,
                None => return,
            }
            look(&node.below);
        }
        look(&node.exact);
    }

    /// Shows `look` the routes that may take all requests of a route with this path, beside those for all paths.
    pub(super) fn walk_covering(&self, path: &str, look: &mut impl FnMut(&[u32])) {
        let (segments, is_prefix) = segments(path);
        let mut node = self.nodes.first();
        look(node.map_or(&[], |node| &node.below));
        for segment in segments {
            let mut space = [0; MAX_SEGMENT];
            let name = normalize_segment(segment, &mut space);
            node = node.and_then(|node| self.nodes.get(*node.children.get(name?)?));
            look(node.map_or(&[], |node| &node.below));
        }
        if !is_prefix {
            look(node.map_or(&[], |node| &node.exact));
        }
    }
}

/// Adds a route once.
fn put(routes: &mut Vec<u32>, route: u32) {
    if routes.last() != Some(&route) {
        routes.push(route);
    }
}
