// A reader and writer of the part of TOML that configurations use, for the mock alone: the balancer
// has its own, which keeps comments and order.

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
  }
  fail(message) {
    const before = this.text.slice(0, this.at).split("\n");
    throw { line: before.length, column: before.at(-1).length + 1, key: "", message, allowed: null };
  }
  peek() {
    return this.text[this.at];
  }
  blanks(lines) {
    for (;;) {
      const c = this.peek();
      if (c === " " || c === "\t" || (lines && (c === "\n" || c === "\r"))) this.at++;
      else if (c === "#" ) while (this.at < this.text.length && this.peek() !== "\n") this.at++;
      else return;
    }
  }
  take(c) {
    if (this.peek() !== c) this.fail(`expected ${c}`);
    this.at++;
  }
  key() {
    const path = [];
    for (;;) {
      this.blanks(false);
      const c = this.peek();
      if (c === '"' || c === "'") path.push(this.string());
      else {
        const m = /^[A-Za-z0-9_-]+/.exec(this.text.slice(this.at, this.at + 200));
        if (!m) this.fail("expected a key");
        this.at += m[0].length;
        path.push(m[0]);
      }
      this.blanks(false);
      if (this.peek() !== ".") return path;
      this.at++;
    }
  }
  string() {
    const quote = this.peek();
    let end = this.at + 1;
    while (end < this.text.length && this.text[end] !== quote && this.text[end] !== "\n") {
      if (this.text[end] === "\\" && quote === '"') end++;
      end++;
    }
    if (this.text[end] !== quote) this.fail("the string has no end");
    const raw = this.text.slice(this.at, end + 1);
    this.at = end + 1;
    return quote === "'" ? raw.slice(1, -1) : JSON.parse(raw);
  }
  value() {
    const c = this.peek();
    if (c === '"' || c === "'") return this.string();
    if (c === "[") {
      this.at++;
      const list = [];
      for (;;) {
        this.blanks(true);
        if (this.peek() === "]") break;
        list.push(this.value());
        this.blanks(true);
        if (this.peek() === ",") this.at++;
        else if (this.peek() !== "]") this.fail("expected , or ]");
      }
      this.at++;
      return list;
    }
    if (c === "{") {
      this.at++;
      const table = {};
      for (;;) {
        this.blanks(true);
        if (this.peek() === "}") break;
        const path = this.key();
        this.take("=");
        this.blanks(false);
        put(table, path, this.value());
        this.blanks(true);
        if (this.peek() === ",") this.at++;
        else if (this.peek() !== "}") this.fail("expected , or }");
      }
      this.at++;
      return table;
    }
    const m = /^(true|false|[+-]?[0-9][0-9_]*(\.[0-9_]+)?([eE][+-]?[0-9]+)?)/.exec(this.text.slice(this.at, this.at + 60));
    if (!m) this.fail("expected a value");
    this.at += m[0].length;
    return m[0] === "true" ? true : m[0] === "false" ? false : Number(m[0].replaceAll("_", ""));
  }
}

function put(table, path, value) {
  let into = table;
  for (const part of path.slice(0, -1)) into = into[part] ??= {};
  into[path.at(-1)] = value;
}

/** The tree of values, and the line of each key by its name as problems have it. Throws a problem. */
export function parse(text) {
  const reader = new Reader(text);
  const root = {};
  const lines = {};
  let table = root;
  let prefix = "";
  for (;;) {
    reader.blanks(true);
    if (reader.at >= text.length) return { values: root, lines };
    const line = text.slice(0, reader.at).split("\n").length;
    if (reader.peek() === "[") {
      reader.at++;
      const array = reader.peek() === "[";
      if (array) reader.at++;
      const path = reader.key();
      reader.take("]");
      if (array) reader.take("]");
      table = root;
      prefix = "";
      path.forEach((part, index) => {
        const last = index === path.length - 1;
        prefix += (prefix ? "." : "") + part;
        if (last && array) {
          const list = (table[part] ??= []);
          list.push({});
          prefix += `[${list.length - 1}]`;
          table = list.at(-1);
        } else {
          table = table[part] ??= {};
          if (Array.isArray(table)) {
            prefix += `[${table.length - 1}]`;
            table = table.at(-1);
          }
        }
      });
      lines[prefix] = line;
    } else {
      const path = reader.key();
      reader.take("=");
      reader.blanks(false);
      put(table, path, reader.value());
      lines[(prefix ? prefix + "." : "") + path.join(".")] = line;
      reader.blanks(false);
      if (reader.at < text.length && reader.peek() !== "\n" && reader.peek() !== "\r") reader.fail("expected the end of the line");
    }
  }
}

const bare = (key) => (/^[A-Za-z0-9_-]+$/.test(key) ? key : JSON.stringify(key));
const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function inline(value) {
  if (Array.isArray(value)) return `[${value.map(inline).join(", ")}]`;
  if (isTable(value)) {
    const parts = Object.entries(value).map(([k, v]) => `${bare(k)} = ${inline(v)}`);
    return parts.length ? `{ ${parts.join(", ")} }` : "{}";
  }
  return JSON.stringify(value);
}

/** The text of a tree of values. */
export function write(values) {
  const out = [];
  const table = (tree, path) => {
    const nested = [];
    for (const [key, value] of Object.entries(tree)) {
      const small = isTable(value) && path.length >= 2 && ["strategy", "quantum", "threshold", "headers", "sni"].includes(key);
      const tables = Array.isArray(value) && value.length > 0 && value.every(isTable) && key !== "request_limits";
      if ((isTable(value) && !small) || tables) nested.push([key, value]);
      else out.push(`${bare(key)} = ${inline(value)}`);
    }
    for (const [key, value] of nested) {
      const header = [...path, key].map(bare).join(".");
      if (Array.isArray(value))
        for (const item of value) {
          out.push("", `[[${header}]]`);
          table(item, [...path, key]);
        }
      else {
        if (path.length || !Object.values(value).every(isTable)) out.push("", `[${header}]`);
        table(value, [...path, key]);
      }
    }
  };
  table(values, []);
  return out.join("\n").replace(/^\n+/, "") + "\n";
}
