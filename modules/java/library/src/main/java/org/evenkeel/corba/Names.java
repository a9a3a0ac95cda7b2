package org.evenkeel.corba;

import java.util.ArrayList;
import java.util.List;
import org.omg.CosNaming.NameComponent;

/** Names in the string form of the CORBA naming service (Naming Service Specification, 2.4). */
final class Names {
    private Names() {}

    /**
     * {@code a/b.kind}: ids separated by {@code /}, a kind behind a {@code .}, and {@code \} before any
     * of the three that belongs to the text.
     *
     * @throws IllegalArgumentException if it is not the form of a name
     */
    static NameComponent[] parse(String name) {
        List<NameComponent> components = new ArrayList<>();
        StringBuilder id = new StringBuilder();
        StringBuilder kind = null;
        for (int i = 0; i <= name.length(); i++) {
            char c = i < name.length() ? name.charAt(i) : '/';
            StringBuilder part = kind == null ? id : kind;
            if (c == '\\') {
                i++;
                if (i == name.length() || "/.\\".indexOf(name.charAt(i)) < 0) {
                    throw new IllegalArgumentException("in a name, \\ stands before /, . or \\: " + name);
                }
                part.append(name.charAt(i));
            } else if (c == '/') {
                if (id.length() == 0 && (kind == null || kind.length() == 0 && components.isEmpty())) {
                    throw new IllegalArgumentException("a name has no empty components: " + name);
                }
                components.add(new NameComponent(id.toString(), kind == null ? "" : kind.toString()));
                id.setLength(0);
                kind = null;
            } else if (c == '.') {
                if (kind != null) {
                    throw new IllegalArgumentException("a component of a name has one kind: " + name);
                }
                kind = new StringBuilder();
            } else {
                part.append(c);
            }
        }
        return components.toArray(new NameComponent[0]);
    }
}
