"""What each resolver decides of two changes to a row with the columns `a` and `v`, of which `v` is the resolver's."""

# (publisher row, subscriber row, ancestor row, both changed v, default says publisher, columns changed by each)
# -> (publisher wins, made values)


def by_order(better):
    def resolve(p, s, base, both, default, counts):
        if p is None or s is None or p["v"] == s["v"]:
            return default, {}
        if p["v"] is None or s["v"] is None:
            return s["v"] is None, {}
        return better(p["v"], s["v"]), {}

    return resolve


def made(compute):
    def resolve(p, s, base, both, default, counts):
        if p is None or s is None or not both:
            return default, {}
        value = compute(p["v"], s["v"], base["v"] if base else None, default, base is not None)
        return default, ({} if value is KEEP else {"v": value})

    return resolve


KEEP = object()


def total(p, s, base, default, has_base):
    return s if p is None else p if s is None else p + s


def average(p, s, base, default, has_base):
    return s if p is None else p if s is None else int((p + s) / 2)


def delta(p, s, base, default, has_base):
    if not has_base:
        return KEEP
    return s if p is None else p if s is None else p + s - (base or 0)


def text_columns(p, s, base, default, has_base):
    p, s = p or "", s or ""
    if p == s:
        return KEEP
    shared = 0
    while shared < min(len(p), len(s)) and p[shared] == s[shared]:
        shared += 1
    return p[:shared] + p[shared:] + "===" + s[shared:]


def union(p, s, base, default, has_base):
    if p is None or s is None:
        return s if p is None else p
    base = base or ()
    gone = set(base) - (set(p) & set(s))
    return tuple(x for x in dict.fromkeys((*p, *s)) if x not in gone)


def fields(p, s, base, default, has_base):
    """Struct or JSON object, one level: a field that one side changed is that side's; else the winner's."""
    if p is None or s is None or not has_base or base is None:
        return KEEP
    p, s, base = dict(p), dict(s), dict(base)
    result = {}
    for name in dict.fromkeys((*p, *s)):
        mine, theirs, old = p.get(name, KEEP), s.get(name, KEEP), base.get(name, KEEP)
        value = theirs if mine == old else mine if theirs == old else (mine if default else theirs)
        if value is not KEEP:
            result[name] = value
    return tuple(sorted(result.items()))


RESOLVERS = {
    "priority": lambda p, s, base, both, default, counts: (default, {}),
    "additive": made(total),
    "averaging": made(average),
    "maximum": by_order(lambda p, s: p > s),
    "minimum": by_order(lambda p, s: p < s),
    "datetime_earlier_wins": by_order(lambda p, s: p < s),
    "datetime_later_wins": by_order(lambda p, s: p > s),
    "priority_column": by_order(lambda p, s: p > s),
    "merge_text": made(text_columns),
    "subscriber_wins": lambda p, s, base, both, default, counts: (False, {}),
    "publisher_wins": lambda p, s, base, both, default, counts: (True, {}),
    "upload_only": lambda p, s, base, both, default, counts: (False, {}),
    "download_only": lambda p, s, base, both, default, counts: (True, {}),
    "most_changes_win": lambda p, s, base, both, default, counts: (
        (default, {}) if p is None or s is None or counts[0] == counts[1] else (counts[0] > counts[1], {})
    ),
    "delta": made(delta),
    "union": made(union),
    "fields": made(fields),
}
MAKES = {"additive", "averaging", "merge_text", "delta", "union", "fields"}
ONE_WAY = {"upload_only", "download_only"}
"""Nothing is taken of the other side, so that nothing merges: rows that differ are decided as wholes."""
CLASHES_IF_EQUAL = {"additive", "delta"}
"""Two changes to one value are two changes to these: 10 to 11 here and there is 12."""
NEEDS_BASE = {"delta", "union", "fields"}
