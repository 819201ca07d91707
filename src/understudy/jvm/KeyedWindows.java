package understudy;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF0;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Windows per key on Spark's executors ({@code windowed/on_spark.py}).
 *
 * <p>In Java and not in Python because a Python processor asks for every piece of state over a socket: seconds for ten
 * thousand keys.
 */
public final class KeyedWindows {
  /** By this name plans have {@link #number}. */
  private static final String NUMBER = "understudy_number";

  private KeyedWindows() {}

  /** A column that numbers the rows of a batch in their order, before they are shuffled. Spark's own is refused in streams. */
  public static Column number() {
    return functions.udf(new Numbering(), DataTypes.LongType).asNondeterministic().withName(NUMBER).apply();
  }

  /** A task's rows come one after the other, and partitions are in order. */
  private static final class Numbering implements UDF0<Long> {
    private static final Map<Long, long[]> NEXT = new ConcurrentHashMap<>();

    @Override
    public Long call() {
      TaskContext task = TaskContext.get();
      return NEXT.computeIfAbsent(task.taskAttemptId(), id -> {
        task.addTaskCompletionListener((TaskCompletionListener) over -> NEXT.remove(id));
        return new long[] {(long) task.partitionId() << 32};
      })[0]++;
    }
  }

  /** Of {@code (keys, left, right, number)}, of which one side is null: {@code (keys, left, right)} for every pair. */
  public static Dataset<Row> join(
      Dataset<Row> tagged, List<String> keys, long left, long leftGroup, long right, long rightGroup) {
    StructType row = tagged.schema();
    StructType made = keysOf(row, keys).add(row.apply("left")).add(row.apply("right"));
    KeyWindow lefts = new KeyWindow("left", (StructType) row.apply("left").dataType(), left, leftGroup);
    KeyWindow rights = new KeyWindow("right", (StructType) row.apply("right").dataType(), right, rightGroup);
    return transformed(tagged, keys, new Join(lefts, rights), made);
  }

  /**
   * Of {@code (keys, row, number)}: for each key that has got rows its keys, and then what comes of its window: {@code
   * functions} of the row's {@code columns}, in the types that {@code made} has. {@code tooLarge}: what is to be said of each where
   * its type cannot hold it.
   */
  public static Dataset<Row> aggregate(
      Dataset<Row> numbered, List<String> keys, long count, long group, List<Integer> columns, List<String> functions,
      List<String> tooLarge, StructType made) {
    KeyWindow window = new KeyWindow("rows", (StructType) numbered.schema().apply("row").dataType(), count, group);
    int[] of = columns.stream().mapToInt(Integer::intValue).toArray();
    String[] names = functions.toArray(String[]::new), told = tooLarge.toArray(String[]::new);
    return transformed(numbered, keys, new Aggregate(window, of, names, told, made), made);
  }

  private static Dataset<Row> transformed(
      Dataset<Row> rows, List<String> keys, StatefulProcessor<Row, Row, Row> processor, StructType made) {
    StructType key = keysOf(rows.schema(), keys);
    Column[] columns = keys.stream().map(functions::col).toArray(Column[]::new);
    return rows.groupBy(columns)
        .as(Encoders.row(key), Encoders.row(rows.schema()))
        .transformWithState(processor, TimeMode.None(), OutputMode.Append(), Encoders.row(made));
  }

  private static StructType keysOf(StructType row, List<String> keys) {
    StructType found = new StructType();
    for (String name : keys) found = found.add(row.apply(name));
    return found;
  }

  /** The batch's rows of a key, in the order in which they came: shuffling keeps none. */
  private static List<Row> ordered(Iterator<Row> rows) {
    List<Row> found = new ArrayList<>();
    CollectionConverters.asJava(rows).forEachRemaining(found::add);
    found.sort(Comparator.comparingLong(row -> row.getLong(row.length() - 1)));
    return found;
  }

  private static final class Aggregate extends StatefulProcessor<Row, Row, Row> {
    private final KeyWindow window;
    private final int[] columns;
    private final String[] functions;
    private final String[] tooLarge;
    private final StructType made;

    Aggregate(KeyWindow window, int[] columns, String[] functions, String[] tooLarge, StructType made) {
      this.window = window;
      this.columns = columns;
      this.functions = functions;
      this.tooLarge = tooLarge;
      this.made = made;
    }

    @Override
    public void init(OutputMode mode, TimeMode time) {
      window.init(getHandle());
    }

    @Override
    public Iterator<Row> handleInputRows(Row key, Iterator<Row> rows, TimerValues timers) {
      List<Row> came = new ArrayList<>();
      for (Row row : ordered(rows)) came.add(row.getStruct(key.length()));
      window.insert(came);
      List<Row> there = window.rows();
      Object[] result = new Object[key.length() + columns.length];
      for (int i = 0; i < key.length(); i++) result[i] = key.get(i);
      for (int i = 0; i < columns.length; i++) {
        int at = key.length() + i;
        try {
          result[at] = Aggregates.of(functions[i], there, columns[i], made.apply(at).dataType());
        } catch (ArithmeticException error) {
          throw new ArithmeticException(tooLarge[i]);
        }
      }
      return CollectionConverters.asScala(List.of(RowFactory.create(result)).iterator());
    }
  }

  private static final class Join extends StatefulProcessor<Row, Row, Row> {
    private final KeyWindow left;
    private final KeyWindow right;

    Join(KeyWindow left, KeyWindow right) {
      this.left = left;
      this.right = right;
    }

    @Override
    public void init(OutputMode mode, TimeMode time) {
      left.init(getHandle());
      right.init(getHandle());
    }

    /** As {@code windowed/join.py} has it: left rows find the right window as it was, right rows the left one as it is now. */
    @Override
    public Iterator<Row> handleInputRows(Row key, Iterator<Row> rows, TimerValues timers) {
      List<Row> lefts = new ArrayList<>(), rights = new ArrayList<>();
      for (Row row : ordered(rows)) {
        if (row.isNullAt(key.length())) rights.add(row.getStruct(key.length() + 1));
        else lefts.add(row.getStruct(key.length()));
      }
      List<Row> made = new ArrayList<>();
      if (!lefts.isEmpty() && right.keeps()) {
        List<Row> partners = right.rows();
        for (Row one : lefts) for (Row other : partners) made.add(pair(key, one, other));
      }
      left.insert(lefts);
      if (!rights.isEmpty() && left.keeps()) {
        List<Row> partners = left.rows();
        for (Row one : rights) for (Row other : partners) made.add(pair(key, other, one));
      }
      right.insert(rights);
      return CollectionConverters.asScala(made.iterator());
    }

    private static Row pair(Row key, Row left, Row right) {
      Object[] made = new Object[key.length() + 2];
      for (int i = 0; i < key.length(); i++) made[i] = key.get(i);
      made[key.length()] = left;
      made[key.length() + 1] = right;
      return RowFactory.create(made);
    }
  }
}
