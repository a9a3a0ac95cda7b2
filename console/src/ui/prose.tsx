// The Markdown of meanings in the schema: code, links and emphasis. Links into the manual become plain words, as
// the manual is not served here.

import type { JSX } from "preact";

export function Prose({ text }: { text: string }): JSX.Element {
  const parts: (JSX.Element | string)[] = [];
  const pattern = /`([^`]+)`|\[((?:`[^`]*`|[^\]`])+)\]\([^)]*\)|\*\*([^*]+)\*\*/g;
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    parts.push(text.slice(from, match.index));
    if (match[1] !== undefined) parts.push(<code key={match.index}>{match[1]}</code>);
    else if (match[2] !== undefined) parts.push(<Prose key={match.index} text={match[2]} />);
    else parts.push(<strong key={match.index}>{match[3]}</strong>);
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return <>{parts}</>;
}
