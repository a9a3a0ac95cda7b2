// Where in the console one is, kept behind the # of the address.

import { computed, signal } from "@preact/signals";

const read = () => location.hash.replace(/^#\/?/, "");
const raw = signal(read());

export const route = computed(() => {
  const [path = "", query = ""] = raw.value.split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { parts, query: new URLSearchParams(query) };
});

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

/** The page about a rule: those of Kubernetes are not in the configuration's file. */
export function ruleHref(name: string): string {
  return name.startsWith("kubernetes.") ? href("monitor", "kubernetes") : href("config", "rule", name);
}

export function go(...parts: string[]): void {
  location.hash = href(...parts);
}

window.addEventListener("hashchange", () => (raw.value = read()));
