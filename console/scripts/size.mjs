// Fails when the console has become too large to load at once, or has what its content security policy forbids.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMIT = 300_000;
const dist = new URL("../dist", import.meta.url).pathname;
const files = readdirSync(dist, { recursive: true }).filter((name) => statSync(join(dist, name)).isFile());
let sum = 0;
for (const name of files) {
  const bytes = readFileSync(join(dist, name));
  const size = gzipSync(bytes, { level: 9 }).length;
  sum += size;
  console.log(`${String(size).padStart(7)}  ${name}`);
  if (name.endsWith(".html") && /<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=/.test(bytes.toString())) {
    console.error(`${name} has inline code or styles, which the content security policy forbids`);
    process.exitCode = 1;
  }
}
console.log(`${String(sum).padStart(7)}  of ${LIMIT} bytes, compressed with gzip`);
if (sum > LIMIT) {
  console.error("the console is too large");
  process.exitCode = 1;
}
