// Search over rules, groups, members, locations, pages and keys of the configuration. `/` comes here.

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { sample } from "./live";
import { href, ruleHref } from "./router";
import { schema } from "./schema";
import type { Group } from "./types";
import { Icon } from "./ui/icons";

interface Hit { text: string; kind: string; to: string }

const SHOWN = 12;

export function Search(): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  const [text, setText] = useState("");
  const [open, setOpen] = useState(false);
  const [chosen, choose] = useState(0);
  const [names, setNames] = useState<{ at: number; hits: Hit[] }>({ at: 0, hits: [] });

  useEffect(() => {
    const key = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      event.preventDefault();
      input.current?.focus();
      input.current?.select();
    };
    document.addEventListener("keydown", key);
    return () => document.removeEventListener("keydown", key);
  }, []);

  // Names of members are many, and a sample may have some groups only; they are asked for when somebody searches.
  const load = async () => {
    if (Date.now() - names.at < 60_000) return;
    setNames((old) => ({ ...old, at: Date.now() }));
    try {
      const groups = await get<Group[]>("/v1/groups");
      const hits: Hit[] = [];
      const places = new Set<string>();
      const live = new Set(sample.peek()?.groups.map((group) => group.name));
      for (const group of groups) {
        if (!live.has(group.name)) hits.push({ text: group.name, kind: "group", to: href("groups", group.name) });
        for (const member of group.members) {
          hits.push({ text: member.name === member.member ? member.name : `${member.name} ${member.member}`, kind: `member of ${group.name}`, to: `${href("groups", group.name)}?member=${encodeURIComponent(member.name)}` });
          places.add(member.location);
        }
      }
      for (const place of places) hits.push({ text: place, kind: "location", to: `${href("monitor", "locations")}?find=${encodeURIComponent(place)}` });
      setNames({ at: Date.now(), hits });
    } catch {
      // Then it finds rules and groups.
    }
  };

  const hits = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    const now = sample.peek();
    const all: Hit[] = [
      ...(now?.groups ?? []).map((group) => ({ text: group.name, kind: "group", to: href("groups", group.name) })),
      ...(now?.rules ?? []).map((rule) => ({ text: rule.name, kind: "rule", to: ruleHref(rule.name) })),
      ...names.hits,
      ...(schema.value?.tables ?? []).flatMap((table) => table.keys.map((key) => ({ text: key.name, kind: `key of ${table.header || "the file"}`, to: `${href("config", "reference")}?find=${encodeURIComponent(key.name)}` }))),
      ...(schema.value?.strategies ?? []).map((strategy) => ({ text: strategy.name, kind: "strategy", to: `${href("config", "reference")}?find=${encodeURIComponent(strategy.name)}` })),
    ];
    const found: Hit[] = [];
    const rest: Hit[] = [];
    for (const hit of all) {
      const at = hit.text.toLowerCase().indexOf(wanted);
      if (at === 0) found.push(hit);
      else if (at > 0 && rest.length < SHOWN) rest.push(hit);
      if (found.length >= SHOWN) break;
    }
    return [...found, ...rest].slice(0, SHOWN);
  }, [text, names]);

  const close = () => setOpen(false);
  const take = (hit: Hit | undefined) => {
    if (!hit) return;
    location.hash = hit.to;
    setText("");
    close();
    input.current?.blur();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (hits.length) choose((chosen + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % hits.length);
    } else if (event.key === "Enter") take(hits[chosen]);
    else if (event.key === "Escape") {
      setText("");
      close();
    }
  };
  const shown = open && text.trim() !== "";
  return (
    <div class="search" role="search" onFocusOut={(event) => !(event.currentTarget as HTMLElement).contains(event.relatedTarget as Node) && close()}>
      <Icon name="search" size={14} />
      <input
        ref={input} type="text" role="combobox" aria-label="Search rules, groups, members, locations and keys" aria-expanded={shown} aria-controls="hits" aria-autocomplete="list"
        aria-activedescendant={shown && hits.length ? `hit-${chosen}` : undefined} placeholder="Search" autocomplete="off" spellcheck={false}
        value={text} onInput={(event) => { setText(event.currentTarget.value); choose(0); setOpen(true); }} onFocus={() => { setOpen(true); void load(); }} onKeyDown={key}
      />
      {!text && <kbd aria-hidden="true">/</kbd>}
      <ul id="hits" role="listbox" aria-label="Found" class={shown ? "hits" : "hits hidden"}>
        {hits.map((hit, i) => (
          <li key={hit.to + hit.text} id={`hit-${i}`} role="option" aria-selected={i === chosen} onMouseDown={(event) => { event.preventDefault(); take(hit); }} onMouseEnter={() => choose(i)}>
            <span>{hit.text}</span><span class="kind">{hit.kind}</span>
          </li>
        ))}
        {hits.length === 0 && <li class="none" role="option" aria-selected="false" aria-disabled="true">Nothing found</li>}
      </ul>
    </div>
  );
}
