package understudy;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.StatefulProcessorHandle;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.ValueState;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The newest rows of a key, as state of a {@code transformWithState}.
 *
 * <p>Rows are kept in groups, each an entry of the state store, so that a batch writes only the groups with new rows, whole
 * (Jacques-Silva et al. 2009, Section 4.4). Every row that the key ever had has a number, lost ones too, and leaves when
 * {@code count} rows have come after it. An entry is deleted when its last row has left. How many were lost is not known key by
 * key: as many as the key would have got at its pace.
 */
final class KeyWindow implements Serializable {
  private static final long ROOM_MIN = 8;
  /** Groups that a window has at least, where their size is chosen here. */
  private static final long GROUPS_MIN = 4;
  private static final double FADING = 0.2;
  private static final long UNKNOWN = Long.MAX_VALUE;

  private static final StructType HEAD = new StructType()
      .add("total", DataTypes.LongType, false) // rows so far
      .add("oldest", DataTypes.LongType, false) // entries that there are: from this one
      .add("newest", DataTypes.LongType, false) // to this one
      .add("until", DataTypes.LongType, false) // the number after the last one of the oldest entry, unless it is the newest
      .add("room", DataTypes.LongType, false) // how many rows the newest entry is to hold
      .add("rate", DataTypes.DoubleType, false) // rows per batch that has some
      .add("apart", DataTypes.DoubleType, false) // batches from one that has some to the next
      .add("batch", DataTypes.LongType, false) // that touched it last
      .add("lost", DataTypes.LongType, false); // how many batches had been lost by then

  /** A local property of the batch: how many batches before it are not in the state, which was saved before them. */
  static final String LOST = "understudy.lost";

  private final String name;
  private final StructType entry;
  private final long count;
  private final long group;
  private transient ValueState<Row> heads;
  private transient MapState<Long, Row> entries;
  private transient long batch;
  private transient long lost;

  /** {@code group}: rows that are written together; 0 where each key gets what suits its rate. */
  KeyWindow(String name, StructType row, long count, long group) {
    this.name = name;
    this.entry = new StructType()
        .add("first", DataTypes.LongType, false)
        .add("rows", DataTypes.createArrayType(row, false), false);
    this.count = count;
    this.group = group;
  }

  /** A window that holds nothing keeps no state at all. */
  boolean keeps() {
    return count > 0;
  }

  void init(StatefulProcessorHandle handle) {
    if (keeps()) {
      batch = handle.getQueryInfo().getBatchId();
      TaskContext task = TaskContext.get(); // none on the driver, where Spark only asks for the state's schema
      String told = task == null ? null : task.getLocalProperty(LOST);
      lost = told == null ? 0 : Long.parseLong(told);
      heads = handle.getValueState(name + "Head", Encoders.row(HEAD), TTLConfig.NONE());
      entries = handle.getMapState(name + "Rows", Encoders.LONG(), Encoders.row(entry), TTLConfig.NONE());
    }
  }

  /** Rows of this batch, in their order. */
  void insert(List<Row> rows) {
    if (!keeps() || rows.isEmpty()) return;
    Row head = heads.get();
    long total = head == null ? 0 : head.getLong(0) + stale(head);
    long oldest = head == null ? 0 : head.getLong(1);
    long newest = head == null ? 0 : head.getLong(2);
    long until = head == null ? UNKNOWN : head.getLong(3);
    double rate = head == null ? rows.size() : faded(head.getDouble(5), rows.size());
    double apart = head == null ? 1 : faded(head.getDouble(6), Math.max(1, batch - head.getLong(7)));
    long room = head == null ? room(rate) : head.getLong(4);
    long first = total;
    List<Row> open = new ArrayList<>();
    if (head != null) {
      Row found = entries.getValue(newest);
      first = found.getLong(0);
      open.addAll(found.getList(1));
    }
    long skipped = Math.max(0, rows.size() - count);
    total += skipped;
    for (Row row : rows.subList((int) skipped, rows.size())) {
      if (open.size() >= room || first + open.size() != total) { // it is full, or rows are missing after it
        if (!open.isEmpty()) {
          write(newest, first, open);
          newest++;
          if (until == UNKNOWN) until = first + open.size();
        }
        open = new ArrayList<>();
        first = total;
        room = room(rate);
      }
      open.add(row);
      total++;
    }
    write(newest, first, open);
    while (until <= total - count) {
      entries.removeKey(oldest);
      oldest++;
      until = UNKNOWN;
      if (oldest < newest) {
        Row next = entries.getValue(oldest);
        until = next.getLong(0) + next.getList(1).size();
      }
    }
    heads.update(RowFactory.create(total, oldest, newest, until, room, rate, apart, batch, lost));
  }

  private static double faded(double before, double now) {
    return before + FADING * (now - before);
  }

  /** How many of its rows were about to come in the batches that were lost since it was touched. */
  private long stale(Row head) {
    return Math.round(Math.max(0, lost - head.getLong(8)) * head.getDouble(5) / head.getDouble(6));
  }

  private long room(double rate) {
    if (group > 0) return group;
    return Math.max(1, Math.min(Math.max(ROOM_MIN, Math.round(rate)), count / GROUPS_MIN));
  }

  private void write(long number, long first, List<Row> rows) {
    entries.updateValue(number, RowFactory.create(first, CollectionConverters.asScala(rows).toSeq()));
  }

  /** All that is in it, the oldest first. */
  List<Row> rows() {
    List<Row> found = new ArrayList<>();
    Row head = keeps() ? heads.get() : null;
    if (head == null) return found;
    long start = head.getLong(0) + stale(head) - count;
    List<Row> all = new ArrayList<>();
    CollectionConverters.asJava(entries.values()).forEachRemaining(all::add);
    all.sort(Comparator.comparingLong(row -> row.getLong(0)));
    for (Row each : all) {
      List<Row> rows = each.getList(1);
      int left = (int) Math.max(0, Math.min(rows.size(), start - each.getLong(0)));
      found.addAll(left == 0 ? rows : rows.subList(left, rows.size()));
    }
    return found;
  }
}
